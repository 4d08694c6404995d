import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/** Kafka Streams in the benchmark: {@code Streams BROKERS APP WHAT INPUT OUTPUT COMMIT_MS STATE}; WHAT: filter, count. */
public final class Streams {
    private static final ObjectMapper JSON = new ObjectMapper();

    private static JsonNode parsed(byte[] value) {
        try {
            return JSON.readTree(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static byte[] bytes(ObjectNode value) {
        try {
            return JSON.writeValueAsBytes(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static byte[] count(String member, long start, long views) {
        return bytes(JSON.createObjectNode().put("member", member).put("start", start).put("views", views));
    }

    public static void main(String[] args) throws InterruptedException {
        Properties said = new Properties();
        said.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        said.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        said.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        said.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, args[5]);
        said.put(StreamsConfig.STATE_DIR_CONFIG, args[6]);
        said.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "2");
        said.put("auto.offset.reset", "earliest");

        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], JsonNode> views =
                builder.stream(args[3], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                        .mapValues(Streams::parsed)
                        .filter((key, view) -> !view.get("url").textValue().equals("/health"));
        if (args[2].equals("filter")) {
            views.mapValues(view -> {
                        ObjectNode kept = JSON.createObjectNode().put("member", view.get("member").textValue());
                        return bytes(kept.put("ts", view.get("ts").longValue()));
                    })
                    .to(args[4], Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        } else {
            Duration late = Duration.ofDays(1);
            views.map((key, view) -> KeyValue.pair(view.get("member").textValue(), new byte[0]))
                    .groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
                    .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), late))
                    .count(Materialized.with(Serdes.String(), Serdes.Long()))
                    .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
                    .toStream()
                    .map((window, n) -> KeyValue.pair(window.key(), count(window.key(), window.window().start(), n)))
                    .to(args[4], Produced.with(Serdes.String(), Serdes.ByteArray()));
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), said);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        System.out.println("running");
        Thread.currentThread().join();
    }
}

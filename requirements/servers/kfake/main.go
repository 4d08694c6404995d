// A Kafka broker for tests, in memory or with a folder. It differs from Kafka in that it replicates nothing.
//
// It also answers HTTP on a port of its own, where tests make requests of clients fail.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func main() {
	port := flag.Int("port", 0, "port of 127.0.0.1 for clients of Kafka")
	control := flag.Int("control", 0, "port of 127.0.0.1 for orders of tests; 0: none")
	partitions := flag.Int("partitions", 1, "partitions of topics that are created without a number")
	folder := flag.String("data", "", "folder for what is written; without one it is lost with the process")
	user := flag.String("user", "", "NAME:PASSWORD of the only user, by SASL PLAIN; without it everybody may do everything")
	configs := map[string]string{}
	flag.Func("config", "KEY=VALUE, a setting of the broker", func(text string) error {
		key, value, found := strings.Cut(text, "=")
		if !found {
			return fmt.Errorf("%q has no =", text)
		}
		configs[key] = value
		return nil
	})
	flag.Parse()

	options := []kfake.Opt{
		kfake.Ports(*port), kfake.ListenFn(listen), kfake.DefaultNumPartitions(*partitions), kfake.BrokerConfigs(configs),
	}
	if *folder != "" {
		options = append(options, kfake.DataDir(*folder))
	}
	if *user != "" {
		name, password, _ := strings.Cut(*user, ":")
		options = append(options, kfake.EnableSASL(), kfake.Superuser("PLAIN", name, password))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		log.Fatal(err)
	}
	if *control != 0 {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *control))
		if err != nil {
			log.Fatal(err)
		}
		go func() { log.Fatal(http.Serve(listener, orders(cluster))) }()
	}
	fmt.Printf("listening on %s\n", strings.Join(cluster.ListenAddrs(), ","))

	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	<-ended
	cluster.Close()
}

// listen keeps other machines out, whatever address the cluster asks for.
func listen(network, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return net.Listen(network, net.JoinHostPort("127.0.0.1", port))
}

func orders(cluster *kfake.Cluster) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /fault", func(reply http.ResponseWriter, request *http.Request) {
		fault, err := faultOf(request)
		if err != nil {
			http.Error(reply, err.Error(), http.StatusBadRequest)
			return
		}
		cluster.Fault(fault)
	})
	mux.HandleFunc("POST /compact", func(http.ResponseWriter, *http.Request) { cluster.Compact() })
	return mux
}

// faultOf says which requests fail, and how: "request" and "error" by Kafka's names, "topic" and "count" if given.
func faultOf(request *http.Request) (kfake.Fault, error) {
	fault := kfake.Fault{Topic: request.FormValue("topic"), TxnID: request.FormValue("transaction")}
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		if kmsg.NameForKey(key) == request.FormValue("request") {
			fault.Keys = append(fault.Keys, kmsg.Key(key))
		}
	}
	if len(fault.Keys) == 0 {
		return fault, fmt.Errorf("no request is called %q", request.FormValue("request"))
	}
	for code := int16(-1); code < 200; code++ {
		if typed := kerr.TypedErrorForCode(code); typed != nil && typed.Message == request.FormValue("error") {
			fault.Err = typed
		}
	}
	if fault.Err == nil {
		return fault, fmt.Errorf("no error is called %q", request.FormValue("error"))
	}
	count, err := strconv.Atoi(request.FormValue("count"))
	fault.Count = count
	return fault, err
}

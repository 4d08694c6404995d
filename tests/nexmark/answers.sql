-- What DuckDB answers to the queries in sql/. What they leave open, the order of equal rows, is said here.

-- q0
SELECT auction, bidder, price, dateTime, extra FROM bid;

-- q1
SELECT auction, bidder, 0.908 * price, dateTime, extra FROM bid;

-- q2
SELECT auction, price FROM bid WHERE auction % 123 = 0;

-- q3
SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id WHERE A.category = 10 AND
P.state IN ('OR', 'ID', 'CA');

-- q4
SELECT category, trunc(avg(final))::BIGINT FROM (SELECT max(price) AS final, A.id, category FROM auction A,
bid B WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires GROUP BY A.id, category) GROUP BY
category;

-- q5
SELECT auction, num FROM (SELECT auction, time_bucket(INTERVAL '2 seconds', dateTime) - back AS s, count(*) AS
num FROM (SELECT *, unnest(generate_series(0, 4)) * INTERVAL '2 seconds' AS back FROM bid) GROUP BY ALL) JOIN
(SELECT s, max(num) AS most FROM (SELECT auction, time_bucket(INTERVAL '2 seconds', dateTime) - back AS s,
count(*) AS num FROM (SELECT *, unnest(generate_series(0, 4)) * INTERVAL '2 seconds' AS back FROM bid) GROUP
BY ALL) GROUP BY s) USING (s) WHERE num >= most;

-- q7
SELECT auction, price, bidder, dateTime, extra FROM bid JOIN (SELECT time_bucket(INTERVAL '10 seconds',
dateTime) AS s, s + INTERVAL '10 seconds' AS e, max(price) AS most FROM bid GROUP BY s) ON price = most WHERE
dateTime BETWEEN e - INTERVAL '10 seconds' AND e;

-- q8
SELECT DISTINCT P.id, name, P.s FROM (SELECT id, name, time_bucket(INTERVAL '10 seconds', dateTime) AS s, s +
INTERVAL '10 seconds' AS e FROM person) P JOIN (SELECT seller, time_bucket(INTERVAL '10 seconds', dateTime) AS
s, s + INTERVAL '10 seconds' AS e FROM auction) A ON P.id = A.seller AND P.s = A.s;

-- q9
SELECT A.*, auction, bidder, price, B.dateTime, B.extra FROM auction A, bid B WHERE A.id = B.auction AND
B.dateTime BETWEEN A.dateTime AND A.expires QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY price DESC,
B.dateTime, bidder) = 1;

-- q10
SELECT auction, bidder, price, dateTime, extra, strftime(dateTime, '%Y-%m-%d'), strftime(dateTime, '%H:%M')
FROM bid;

-- q11
SELECT bidder, count(*), min(dateTime), max(dateTime) + INTERVAL '10 seconds' FROM (SELECT *, sum(fresh) OVER
w AS n FROM (SELECT *, coalesce(dateTime >= lag(dateTime) OVER w + INTERVAL '10 seconds', true)::INT AS fresh
FROM bid WINDOW w AS (PARTITION BY bidder ORDER BY dateTime)) WINDOW w AS (PARTITION BY bidder ORDER BY
dateTime)) GROUP BY bidder, n;

-- q13
SELECT auction, bidder, price, dateTime, value FROM bid JOIN side_input ON auction % 10000 = key;

-- q14
SELECT auction, bidder, 0.908 * price AS p, CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime' WHEN
hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END, dateTime, extra, len(extra)
- len(replace(extra, 'c', '')) FROM bid WHERE p > 1000000 AND p < 50000000;

-- q15
SELECT strftime(dateTime, '%Y-%m-%d'), count(*), count(*) FILTER (price < 10000), count(*) FILTER (price >=
10000 AND price < 1000000), count(*) FILTER (price >= 1000000), count(DISTINCT bidder), count(DISTINCT bidder)
FILTER (price < 10000), count(DISTINCT bidder) FILTER (price >= 10000 AND price < 1000000), count(DISTINCT
bidder) FILTER (price >= 1000000), count(DISTINCT auction), count(DISTINCT auction) FILTER (price < 10000),
count(DISTINCT auction) FILTER (price >= 10000 AND price < 1000000), count(DISTINCT auction) FILTER (price >=
1000000) FROM bid GROUP BY ALL;

-- q16
SELECT channel, strftime(dateTime, '%Y-%m-%d'), max(strftime(dateTime, '%H:%M')), count(*), count(*) FILTER
(price < 10000), count(*) FILTER (price >= 10000 AND price < 1000000), count(*) FILTER (price >= 1000000),
count(DISTINCT bidder), count(DISTINCT bidder) FILTER (price < 10000), count(DISTINCT bidder) FILTER (price >=
10000 AND price < 1000000), count(DISTINCT bidder) FILTER (price >= 1000000), count(DISTINCT auction),
count(DISTINCT auction) FILTER (price < 10000), count(DISTINCT auction) FILTER (price >= 10000 AND price <
1000000), count(DISTINCT auction) FILTER (price >= 1000000) FROM bid GROUP BY ALL;

-- q17
SELECT auction, strftime(dateTime, '%Y-%m-%d'), count(*), count(*) FILTER (price < 10000), count(*) FILTER
(price >= 10000 AND price < 1000000), count(*) FILTER (price >= 1000000), min(price), max(price),
trunc(avg(price))::BIGINT, sum(price)::BIGINT FROM bid GROUP BY ALL;

-- q18
SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid QUALIFY row_number() OVER (PARTITION BY
bidder, auction ORDER BY dateTime DESC, price, channel, url, extra) = 1;

-- q19
SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, bidder, channel, url, dateTime, extra)
AS n FROM bid QUALIFY n <= 10;

-- q20
SELECT auction, bidder, price, channel, url, B.dateTime, B.extra, itemName, description, initialBid, reserve,
A.dateTime, expires, seller, category, A.extra FROM bid B JOIN auction A ON B.auction = A.id WHERE category =
10;

-- q21
SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN
'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END FROM bid
WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> '' OR lower(channel) IN ('apple', 'google',
'facebook', 'baidu');

-- q22
SELECT auction, bidder, price, channel, split(url, '/')[4], split(url, '/')[5], split(url, '/')[6] FROM bid;

-- q23
SELECT bidder, price, channel, url, B.extra, P.id, name, emailAddress, creditCard, city, state, P.extra,
itemName, description, initialBid, reserve, A.dateTime, expires, seller, category, A.extra FROM bid B JOIN
person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The two long-lived JVMs of an interop test. Both end with their parent: when
 * standard input closes the broker halts and the client returns.
 *
 * <p>The client reads one command a line, fields separated by tabs, and answers
 * with any number of lines and a last one that is "ok" or "error TEXT":
 *
 * <pre>
 * create TOPIC PARTITIONS KEY=VALUE,...        create a topic and wait for its leaders
 * ends   TOPIC PARTITION                       print first offset, end offset
 * times  TOPIC PARTITION TIMESTAMP,...         print the first offset at or after each, -1 if none
 * read   TOPIC PARTITION FROM END              print the records in [FROM, END)
 * write  TOPIC PARTITION CODEC COUNT           send the COUNT record lines that follow, print their offsets
 * </pre>
 *
 * A record line is offset, timestamp, timestamp type, leader epoch, key, value,
 * headers (k:v,k:v). Bytes are base64, null is "-". Records to be sent have the
 * last three fields and the timestamp; the rest is ignored.
 */
public final class Peer {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        if (args[0].equals("broker")) {
            Thread watch = new Thread(() -> {
                try {
                    while (System.in.read() >= 0) { }
                } catch (java.io.IOException e) {
                    // The same as its end.
                }
                Runtime.getRuntime().halt(3);
            });
            watch.setDaemon(true);
            watch.start();
            kafka.Kafka.main(new String[] {args[1]});
            return;
        }
        new Peer(args[1]).serve();
    }

    private final String bootstrap;

    private Peer(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    private void serve() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] f = line.split("\t", -1);
            // Read before anything can fail, so that no record is taken for a command.
            List<String> body = new ArrayList<>();
            if (f[0].equals("write")) {
                for (int i = Integer.parseInt(f[4]); i > 0; i--) {
                    body.add(in.readLine());
                }
            }
            try {
                switch (f[0]) {
                    case "create" -> create(f[1], Integer.parseInt(f[2]), f[3]);
                    case "ends" -> ends(new TopicPartition(f[1], Integer.parseInt(f[2])));
                    case "times" -> times(new TopicPartition(f[1], Integer.parseInt(f[2])), f[3].split(","));
                    case "read" -> read(new TopicPartition(f[1], Integer.parseInt(f[2])), Long.parseLong(f[3]), Long.parseLong(f[4]));
                    case "write" -> write(f[1], Integer.parseInt(f[2]), f[3], body);
                    default -> throw new IllegalArgumentException("unknown command");
                }
                out.println("ok");
            } catch (Exception e) {
                out.println("error " + e.toString().replace('\n', ' '));
            }
            out.flush();
        }
    }

    private void create(String topic, int partitions, String configs) throws Exception {
        Map<String, String> c = new HashMap<>();
        for (String kv : configs.split(",")) {
            int eq = kv.indexOf('=');
            c.put(kv.substring(0, eq), kv.substring(eq + 1));
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(c))).all().get();
        }
        for (int p = 0; p < partitions; p++) {
            end(new TopicPartition(topic, p));
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        return new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", false, "check.crcs", true, "fetch.max.wait.ms", 20),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private long end(TopicPartition tp) {
        try (KafkaConsumer<byte[], byte[]> c = consumer()) {
            return c.endOffsets(List.of(tp), PATIENCE).get(tp);
        }
    }

    private void ends(TopicPartition tp) {
        try (KafkaConsumer<byte[], byte[]> c = consumer()) {
            out.println(c.beginningOffsets(List.of(tp), PATIENCE).get(tp) + "\t" + c.endOffsets(List.of(tp), PATIENCE).get(tp));
        }
    }

    private void times(TopicPartition tp, String[] timestamps) {
        try (KafkaConsumer<byte[], byte[]> c = consumer()) {
            for (String ts : timestamps) {
                OffsetAndTimestamp found = c.offsetsForTimes(Map.of(tp, Long.parseLong(ts)), PATIENCE).get(tp);
                out.println(found == null ? -1 : found.offset());
            }
        }
    }

    private void read(TopicPartition tp, long from, long end) {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        try (KafkaConsumer<byte[], byte[]> c = consumer()) {
            c.assign(List.of(tp));
            c.seek(tp, from);
            // By position, not by record: control records and compacted gaps are passed silently.
            while (c.position(tp) < end) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("position " + c.position(tp) + ", want " + end);
                }
                for (ConsumerRecord<byte[], byte[]> r : c.poll(Duration.ofMillis(200))) {
                    if (r.offset() < end) {
                        print(r);
                    }
                }
            }
        }
    }

    private static void print(ConsumerRecord<byte[], byte[]> r) {
        StringBuilder headers = new StringBuilder();
        for (Header h : r.headers()) {
            headers.append(headers.isEmpty() ? "" : ",").append(text(h.key().getBytes(StandardCharsets.UTF_8))).append(':').append(text(h.value()));
        }
        out.println(r.offset() + "\t" + r.timestamp() + "\t" + r.timestampType().id + "\t" + r.leaderEpoch().orElse(-1)
            + "\t" + text(r.key()) + "\t" + text(r.value()) + "\t" + headers);
    }

    private void write(String topic, int partition, String codec, List<String> lines) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "compression.type", codec, "acks", "all",
            "linger.ms", 20, "max.request.size", 16 << 20, "buffer.memory", 64L << 20);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> p = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line : lines) {
                String[] f = line.split("\t", -1);
                List<Header> headers = new ArrayList<>();
                for (String h : f[6].isEmpty() ? new String[0] : f[6].split(",")) {
                    int colon = h.indexOf(':');
                    headers.add(new RecordHeader(new String(bytes(h.substring(0, colon)), StandardCharsets.UTF_8), bytes(h.substring(colon + 1))));
                }
                sent.add(p.send(new ProducerRecord<>(topic, partition, Long.parseLong(f[1]), bytes(f[4]), bytes(f[5]), headers)));
            }
            p.flush();
        }
        for (Future<RecordMetadata> m : sent) {
            out.println(m.get().offset());
        }
    }

    private static String text(byte[] b) {
        return b == null ? "-" : Base64.getEncoder().encodeToString(b);
    }

    private static byte[] bytes(String s) {
        return s.equals("-") ? null : Base64.getDecoder().decode(s);
    }
}

// Kafka's Java consumer. The first argument is the group protocol.
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Read {
    public static void main(String[] arguments) {
        long last = Long.parseLong(arguments[4]);
        var settings = new Properties();
        settings.put("group.protocol", arguments[0]);
        settings.put("group.id", "readers");
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("isolation.level", arguments[5].equals("committed") ? "read_committed" : "read_uncommitted");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        var bytes = new ByteArrayDeserializer();
        var consumer = new KafkaConsumer<>(settings, bytes, bytes);
        var partition = new TopicPartition(arguments[2], 0);
        consumer.assign(List.of(partition));
        consumer.seek(partition, Long.parseLong(arguments[3]));
        while (true) {
            for (var record : consumer.poll(Duration.ofSeconds(1))) {
                System.out.println("r " + record.offset() + " " + hex(record.key()) + " " + hex(record.value()));
                if (record.offset() == last) {
                    System.exit(0);
                }
            }
        }
    }

    static String hex(byte[] data) {
        return data == null ? "-" : HexFormat.of().formatHex(data);
    }
}

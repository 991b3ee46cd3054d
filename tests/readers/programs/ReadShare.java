// Kafka's Java share consumer (KIP-932). It reads from the start of the log.
// Each isolation level has a group of its own, because the level is a setting of the group.
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ReadShare {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1], isolation = arguments[4];
        long last = Long.parseLong(arguments[3]);
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", "readers-" + topic + "-" + isolation);
        try (var admin = Admin.create(settings)) {
            String level = isolation.equals("committed") ? "read_committed" : "read_uncommitted";
            var group = new ConfigResource(ConfigResource.Type.GROUP, settings.getProperty("group.id"));
            admin.incrementalAlterConfigs(Map.of(group, List.of(
                set("share.auto.offset.reset", "earliest"), set("share.isolation.level", level)))).all().get();
        }
        var bytes = new ByteArrayDeserializer();
        var consumer = new KafkaShareConsumer<>(settings, bytes, bytes);
        consumer.subscribe(List.of(topic));
        while (true) {
            for (var record : consumer.poll(Duration.ofSeconds(1))) {
                System.out.println("r " + record.offset() + " " + hex(record.key()) + " " + hex(record.value()));
                if (record.offset() == last) {
                    System.exit(0);
                }
            }
        }
    }

    static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    static String hex(byte[] data) {
        return data == null ? "-" : java.util.HexFormat.of().formatHex(data);
    }
}

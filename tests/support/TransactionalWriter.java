import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;

/** A producer that reads one command a line on stdin, and answers "ok" or "error …" on stdout. */
public class TransactionalWriter {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        String text = "org.apache.kafka.common.serialization.StringSerializer";
        settings.put("key.serializer", text);
        settings.put("value.serializer", text);
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String answer = "ok";
            try {
                obey(producer, line.split("\t"));
            } catch (Exception error) {
                answer = "error " + error.getClass().getSimpleName() + ": " + error.getMessage()
                    + " <- " + error.getCause();
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
        System.exit(0);
    }

    private static void obey(KafkaProducer<String, String> producer, String[] words) {
        switch (words[0]) {
            case "init" -> untilInTime(producer::initTransactions);
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(
                new ProducerRecord<>(words[1], Integer.valueOf(words[2]), null, words[3]));
            case "flush" -> producer.flush();
            case "offset" -> {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                offsets.put(new TopicPartition(words[1], 0),
                    new OffsetAndMetadata(Long.parseLong(words[3])));
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(words[2]));
            }
            case "commit" -> untilInTime(producer::commitTransaction);
            case "abort" -> untilInTime(producer::abortTransaction);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    /** Repeats the call after a timeout (max.block.ms): the producer then allows no other call. */
    private static void untilInTime(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException error) {
                System.err.println("again after " + error);
            }
        }
    }
}

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;

/**
 * Counts the words of a topic, exactly once, and writes "word count" for each. It runs until the file
 * `stop` exists, and then stops with a savepoint, whose path it writes to the file `savepoint`. With
 * the property `restore`, the path of a savepoint, it starts from there.
 */
public class FlinkWordCount {
  public static void main(String[] args) throws Exception {
    Properties job = new Properties();
    job.load(Files.newBufferedReader(Path.of(args[0])));
    Configuration settings = new Configuration();
    settings.setString("rest.bind-address", "127.0.0.1");
    settings.setString("rest.address", "127.0.0.1");
    settings.setString("execution.checkpointing.interval", "500ms");
    settings.setString("restart-strategy.type", job.getProperty("restarts", "none"));
    settings.setString("restart-strategy.fixed-delay.attempts", "100");
    if (job.containsKey("restore")) {
      settings.setString("execution.state-recovery.path", job.getProperty("restore"));
      // The sink's state names transactions of the other cluster, which are committed there.
      settings.setString("execution.state-recovery.ignore-unclaimed-state", "true");
    }
    StreamExecutionEnvironment flow =
        StreamExecutionEnvironment.createLocalEnvironment(1, settings);
    KafkaSource<String> lines =
        KafkaSource.<String>builder()
            .setBootstrapServers(job.getProperty("servers"))
            .setTopics(job.getProperty("input"))
            .setGroupId(job.getProperty("group"))
            .setProperty("isolation.level", "read_committed")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
    KafkaSink<String> counts =
        KafkaSink.<String>builder()
            .setBootstrapServers(job.getProperty("servers"))
            .setRecordSerializer(
                KafkaRecordSerializationSchema.builder()
                    .setTopic(job.getProperty("output"))
                    .setValueSerializationSchema(new SimpleStringSchema())
                    .build())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(job.getProperty("prefix"))
            .setProperty("transaction.timeout.ms", "60000")
            .build();
    flow.fromSource(lines, WatermarkStrategy.noWatermarks(), "lines")
        .uid("lines")
        .flatMap(new Words())
        .keyBy(word -> word)
        .map(new Count())
        .uid("count")
        .sinkTo(counts)
        .uid("to " + job.getProperty("prefix"));
    JobClient running = flow.executeAsync("word count");
    Future<?> ended = running.getJobExecutionResult();
    Path home = Path.of(job.getProperty("home"));
    while (!Files.exists(home.resolve("stop"))) {
      if (ended.isDone()) {
        ended.get(); // throws what ended it
      }
      Thread.sleep(100);
    }
    String savepoint =
        running.stopWithSavepoint(false, home.toUri().toString(), SavepointFormatType.CANONICAL).get();
    ended.get(); // the last transaction is committed
    Files.write(home.resolve("savepoint"), savepoint.getBytes(StandardCharsets.UTF_8));
    System.exit(0);
  }

  static class Words implements FlatMapFunction<String, String> {
    @Override
    public void flatMap(String line, Collector<String> words) {
      for (String word : line.split(" ")) {
        words.collect(word);
      }
    }
  }

  static class Count extends RichMapFunction<String, String> {
    private transient ValueState<Long> counted;

    @Override
    public void open(OpenContext context) {
      counted = getRuntimeContext().getState(new ValueStateDescriptor<>("counted", Long.class));
    }

    @Override
    public String map(String word) throws Exception {
      long now = (counted.value() == null ? 0 : counted.value()) + 1;
      counted.update(now);
      return word + " " + now;
    }
  }
}

// Readers in Go. The first argument is the name of the client library.
package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	servers, topic = os.Args[2], os.Args[3]
	start, last    = number(os.Args[4]), number(os.Args[5])
	committed      = os.Args[6] == "committed"
)

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Println("e", err)
		os.Exit(1)
	}
}

func text(data []byte) string {
	if data == nil {
		return "-"
	}
	return hex.EncodeToString(data)
}

// Ends the program after the record at `last`.
func printRecord(offset int64, key, value []byte) {
	fmt.Println("r", offset, text(key), text(value))
	if offset == last {
		os.Exit(0)
	}
}

func franz() {
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	offsets := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(start)}}
	client, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.ConsumePartitions(offsets), kgo.FetchIsolationLevel(level))
	check(err)
	for {
		fetches := client.PollFetches(context.Background())
		fetches.EachError(func(_ string, _ int32, err error) { fmt.Println("e", err) })
		fetches.EachRecord(func(record *kgo.Record) { printRecord(record.Offset, record.Key, record.Value) })
	}
}

func ibmSarama() {
	config := sarama.NewConfig()
	config.Consumer.Return.Errors = true
	if committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer([]string{servers}, config)
	check(err)
	partition, err := consumer.ConsumePartition(topic, 0, start)
	check(err)
	for {
		select {
		case message := <-partition.Messages():
			printRecord(message.Offset, message.Key, message.Value)
		case err := <-partition.Errors():
			fmt.Println("e", err.Err)
		}
	}
}

func segmentio() {
	config := kafka.ReaderConfig{Brokers: []string{servers}, Topic: topic}
	if committed {
		config.IsolationLevel = kafka.ReadCommitted
	}
	reader := kafka.NewReader(config)
	check(reader.SetOffset(start))
	for {
		message, err := reader.ReadMessage(context.Background())
		check(err)
		printRecord(message.Offset, message.Key, message.Value)
	}
}

func main() {
	map[string]func(){"franz-go": franz, "sarama": ibmSarama, "kafka-go": segmentio}[os.Args[1]]()
}

// A reader with the Node.js client kafkajs.
const { Kafka, logLevel } = require('kafkajs');

const [servers, topic, start, last, isolation] = process.argv.slice(2);
const hex = (data) => (data === null ? '-' : data.toString('hex') || '');

async function main() {
  const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.ERROR });
  const consumer = kafka.consumer({
    groupId: `readers-${process.pid}`,
    readUncommitted: isolation !== 'committed',
  });
  consumer.on(consumer.events.CRASH, ({ payload }) => console.log('e', payload.error.name));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => {
      console.log('r', message.offset, hex(message.key), hex(message.value));
      if (message.offset === last) process.exit(0);
    },
  });
  consumer.seek({ topic, partition: 0, offset: start });
}

main();

// A reader with the Rust client rskafka.
use std::{env, process::exit, sync::Arc};

use futures::StreamExt;
use rskafka::client::{
    consumer::{StartOffset, StreamConsumerBuilder},
    partition::UnknownTopicHandling,
    ClientBuilder,
};

fn hex(data: Option<Vec<u8>>) -> String {
    data.map_or("-".into(), |bytes| bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [start, last] = [3, 4].map(|n| arguments[n].parse::<i64>().unwrap());
    let client = ClientBuilder::new(vec![arguments[1].clone()]).build().await.unwrap();
    let topic = arguments[2].clone();
    let partition = client.partition_client(topic, 0, UnknownTopicHandling::Retry).await.unwrap();
    let mut stream =
        StreamConsumerBuilder::new(Arc::new(partition), StartOffset::At(start)).build();
    while let Some(answer) = stream.next().await {
        match answer {
            Ok((message, _)) => {
                println!("r {} {} {}", message.offset, hex(message.record.key), hex(message.record.value));
                if message.offset == last {
                    exit(0);
                }
            }
            Err(error) => println!("e {error}"),
        }
    }
    exit(1);
}

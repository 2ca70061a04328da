// A process that uses the official Rust SDK and nothing of ours: `steady ENDPOINT TOPIC GROUP`.
//
// It sends one numbered message after the other and takes them with a simple consumer, and goes on after every error,
// until a line comes on stdin. What happens goes as JSON lines to stdout; the SDK's log goes to stderr.
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;

const PAUSE: Duration = Duration::from_millis(100);

fn options(endpoint: &str) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(endpoint);
    options.set_long_polling_timeout(Duration::from_secs(2));
    options
}

// The SDK's futures may be dropped at any await, so the end of the test ends them between two calls only.
async fn send(endpoint: String, topic: String, stop: watch::Receiver<bool>) {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic.clone()]);
    let mut producer = Producer::new(option, options(&endpoint)).unwrap();
    producer.start().await.unwrap();
    println!("{{\"ready\": \"producer\"}}");
    let mut number = 0;
    while !*stop.borrow() {
        let message = MessageBuilder::builder()
            .set_topic(topic.as_str())
            .set_body(number.to_string().into_bytes())
            .build()
            .unwrap();
        match producer.send(message).await {
            Ok(_) => println!("{{\"sent\": {number}}}"),
            Err(_) => println!("{{\"refused\": {number}}}"),
        }
        number += 1;
        tokio::time::sleep(PAUSE).await;
    }
    let _ = producer.shutdown().await;
}

async fn take(endpoint: String, topic: String, group: String, stop: watch::Receiver<bool>) {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic.clone()]);
    option.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(option, options(&endpoint)).unwrap();
    consumer.start().await.unwrap();
    println!("{{\"ready\": \"consumer\"}}");
    let everything = FilterExpression::new(FilterType::Tag, "*");
    while !*stop.borrow() {
        match consumer.receive(topic.as_str(), &everything).await {
            Ok(messages) => {
                for message in messages {
                    println!("{{\"got\": {}}}", String::from_utf8_lossy(message.body()));
                    if consumer.ack(&message).await.is_err() {
                        println!("{{\"unacked\": {}}}", String::from_utf8_lossy(message.body()));
                    }
                }
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    let _ = consumer.shutdown().await;
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, what, endpoint, topic, group] = &words[..] else {
        panic!("write: steady ENDPOINT TOPIC GROUP")
    };
    assert_eq!(what, "steady");
    let (tell, stop) = watch::channel(false);
    let sending = tokio::spawn(send(endpoint.clone(), topic.clone(), stop.clone()));
    let taking = tokio::spawn(take(endpoint.clone(), topic.clone(), group.clone(), stop));
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await.unwrap();
    let begun = Instant::now();
    tell.send(true).unwrap();
    let _ = tokio::join!(sending, taking);
    println!("{{\"done\": true, \"shutdown_ms\": {}}}", begun.elapsed().as_millis());
    std::process::exit(0); // a stdin that stays open would hold its reading thread
}

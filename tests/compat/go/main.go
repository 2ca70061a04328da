// A process that uses the official Go SDK and nothing of ours. What happens goes as JSON lines to stdout, until a line
// comes on stdin.
//
//	push ENDPOINT TOPIC GROUP                                   a push consumer
//	member ENDPOINT WORK_MS TOPIC GROUP TOPIC GROUP ...         push consumers that work this long on each message
//	stream ENDPOINT NAME COUNT PACE_MS FIFO_TOPIC NORMAL_TOPIC  COUNT streams of each topic; repeats each send until it is
//	                                                            answered with OK
//	forward ENDPOINT TOPIC GROUP ONWARD                         sends each message to the topic ONWARD, in its trace
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type fields map[string]any

var spoken sync.Mutex // listeners run in many threads; a line is one line

func say(line fields) {
	text, err := json.Marshal(line)
	must(err)
	spoken.Lock()
	defer spoken.Unlock()
	fmt.Println(string(text))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	made, err := strconv.Atoi(text)
	must(err)
	return made
}

func config(endpoint string, group string) *rmq.Config {
	return &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func consumer(endpoint string, topic string, group string, consume func(*rmq.MessageView) rmq.ConsumerResult) rmq.PushConsumer {
	made, err := rmq.NewPushConsumer(
		config(endpoint, group),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
	)
	must(err)
	must(made.Start())
	return made
}

func untilLine() {
	say(fields{"ready": true})
	bufio.NewReader(os.Stdin).ReadString('\n')
}

func end(consumers map[string]rmq.PushConsumer) {
	begun := time.Now()
	for group, one := range consumers {
		must(one.GracefulStop())
		say(fields{"closed": group, "at_us": time.Now().UnixMicro()})
	}
	say(fields{"done": true, "shutdown_ms": time.Since(begun).Milliseconds()})
}

func push(endpoint string, topic string, group string) {
	made := consumer(endpoint, topic, group, func(message *rmq.MessageView) rmq.ConsumerResult {
		say(fields{"got": string(message.GetBody())})
		return rmq.SUCCESS
	})
	untilLine()
	end(map[string]rmq.PushConsumer{group: made})
}

func member(endpoint string, work string, places []string) {
	consumers := map[string]rmq.PushConsumer{}
	for at := 0; at < len(places); at += 2 {
		group := places[at+1]
		consumers[group] = consumer(endpoint, places[at], group, func(message *rmq.MessageView) rmq.ConsumerResult {
			body := string(message.GetBody())
			say(fields{"client": group, "body": body, "got": message.GetProperties()["number"],
				"attempt": message.GetDeliveryAttempt(), "at_us": time.Now().UnixMicro()})
			time.Sleep(time.Duration(number(work)) * time.Millisecond)
			say(fields{"client": group, "worked": body, "at_us": time.Now().UnixMicro()})
			return rmq.SUCCESS
		})
	}
	untilLine()
	end(consumers)
}

func stream(endpoint string, name string, count string, pace string, fifo string, normal string) {
	producer, err := rmq.NewProducer(config(endpoint, ""), rmq.WithTopics(fifo, normal))
	must(err)
	must(producer.Start())
	stop := make(chan struct{})
	var senders sync.WaitGroup
	send := func(topic string, stream string) {
		defer senders.Done()
		for at := 0; ; {
			message := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("%s:%d", stream, at))}
			message.AddProperty("number", strconv.Itoa(at))
			if topic == fifo {
				message.SetMessageGroup(stream)
			}
			begun := time.Now()
			_, err := producer.Send(context.Background(), message)
			line := fields{"stream": stream, "took_ms": time.Since(begun).Milliseconds(), "at_us": time.Now().UnixMicro()}
			if err != nil {
				line["refused"], line["why"] = at, err.Error()
			} else {
				line["sent"] = at
				at++
			}
			say(line)
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(number(pace)) * time.Millisecond):
			}
		}
	}
	senders.Add(2 * number(count))
	for at := range number(count) {
		go send(fifo, fmt.Sprintf("%s-fifo-%d", name, at))
		go send(normal, fmt.Sprintf("%s-normal-%d", name, at))
	}
	untilLine()
	close(stop)
	senders.Wait()
	must(producer.GracefulStop())
	say(fields{"done": true})
}

func main() {
	os.Setenv("mq.consoleAppender.enabled", "false")
	os.Setenv("rocketmq.client.logRoot", os.TempDir())
	rmq.ResetLogger()
	rmq.EnableSsl = false
	words := os.Args[1:]
	switch {
	case len(words) == 4 && words[0] == "push":
		push(words[1], words[2], words[3])
	case len(words) == 5 && words[0] == "forward":
		forward(words[1], words[2], words[3], words[4])
	case len(words) > 4 && len(words)%2 == 1 && words[0] == "member":
		member(words[1], words[2], words[3:])
	case len(words) == 7 && words[0] == "stream":
		stream(words[1], words[2], words[3], words[4], words[5], words[6])
	default:
		panic("unknown command, or not its number of arguments: see the head of main.go")
	}
}

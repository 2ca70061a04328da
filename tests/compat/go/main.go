// A process that uses the official Go SDK and nothing of ours: `push ENDPOINT TOPIC GROUP`.
//
// A push consumer until a line comes on stdin. What happens goes as JSON lines to stdout.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	os.Setenv("mq.consoleAppender.enabled", "false")
	os.Setenv("rocketmq.client.logRoot", os.TempDir())
	rmq.ResetLogger()
	rmq.EnableSsl = false
	if len(os.Args) != 5 || os.Args[1] != "push" {
		panic("write: push ENDPOINT TOPIC GROUP")
	}
	consumer, err := rmq.NewPushConsumer(
		&rmq.Config{Endpoint: os.Args[2], ConsumerGroup: os.Args[4], Credentials: &credentials.SessionCredentials{}},
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{os.Args[3]: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
				fmt.Printf("{\"got\": %q}\n", message.GetBody())
				return rmq.SUCCESS
			},
		}),
	)
	if err != nil {
		panic(err)
	}
	if err := consumer.Start(); err != nil {
		panic(err)
	}
	fmt.Println(`{"ready": true}`)
	bufio.NewReader(os.Stdin).ReadString('\n')
	begun := time.Now()
	if err := consumer.GracefulStop(); err != nil {
		panic(err)
	}
	fmt.Printf("{\"done\": true, \"shutdown_ms\": %d}\n", time.Since(begun).Milliseconds())
}

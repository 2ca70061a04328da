package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/proto"
)

const (
	settle = time.Second     // the readers' polls are parked by then
	late   = 3 * time.Second // after the last send a message that is not there is lost
)

// latency sends its SendMessage requests (one message each) evenly at -rate, while -c readers poll with the first request,
// and tells how long each message took from just before its send to the end of the answer that brought it.
func latency(ctx context.Context, all [][]byte) map[string]any {
	asked := &v2.ReceiveMessageRequest{}
	must(proto.Unmarshal(all[0], asked))
	sends := make([]*v2.SendMessageRequest, len(all)-1)
	for i, one := range all[1:] {
		sends[i] = &v2.SendMessageRequest{}
		must(proto.Unmarshal(one, sends[i]))
	}
	dialled := dial(ctx)
	rctx, stop := context.WithCancel(ctx)
	var sent sync.Map
	var mu sync.Mutex
	var took []time.Duration
	var errs atomic.Int64
	failed := func(what string, said ...any) {
		if errs.Add(1) == 1 {
			fmt.Fprintln(os.Stderr, append([]any{"first error of " + what + ":"}, said...)...)
		}
	}
	var readers, senders sync.WaitGroup
	for w := 0; w < *c; w++ {
		readers.Add(1)
		go func(cl v2.MessagingServiceClient) {
			defer readers.Done()
			for rctx.Err() == nil {
				entries, err := received(rctx, cl, asked)
				now := time.Now()
				if rctx.Err() != nil {
					return
				} else if err != nil {
					failed("a receive", err)
				}
				mu.Lock()
				for _, e := range entries {
					if began, ok := sent.LoadAndDelete(e.MessageId); ok {
						took = append(took, now.Sub(began.(time.Time)))
					}
				}
				mu.Unlock()
				if len(entries) > 0 {
					a := &v2.AckMessageRequest{Group: asked.Group, Topic: asked.MessageQueue.Topic, Entries: entries}
					if r, err := cl.AckMessage(headers(rctx), a); rctx.Err() == nil && (err != nil || r.Status.Code != v2.Code_OK) {
						failed("an ack", err, r.GetStatus())
					}
				}
			}
		}(v2.NewMessagingServiceClient(dialled[w%len(dialled)]))
	}
	time.Sleep(settle)
	cl := v2.NewMessagingServiceClient(dialled[0])
	t0 := time.Now()
	for i, one := range sends {
		time.Sleep(time.Until(t0.Add(time.Duration(float64(i) / *rate * float64(time.Second)))))
		senders.Add(1)
		go func(one *v2.SendMessageRequest) {
			defer senders.Done()
			sent.Store(one.Messages[0].SystemProperties.MessageId, time.Now())
			if r, err := cl.SendMessage(headers(ctx), one); err != nil || r.Status.Code != v2.Code_OK {
				failed("a send", err, r.GetStatus())
			}
		}(one)
	}
	senders.Wait()
	secs := time.Since(t0).Seconds()
	came := func() int { mu.Lock(); defer mu.Unlock(); return len(took) }
	for until := time.Now().Add(late); came() < len(sends) && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	readers.Wait()
	if len(took) < len(sends) {
		failed("a message", len(sends)-len(took), "of", len(sends), "never came")
		return map[string]any{"secs": secs, "errors": errs.Load()}
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	at := func(part float64) float64 { return float64(took[int(part*float64(len(took)-1))].Microseconds()) / 1000 }
	return map[string]any{"secs": secs, "calls": len(sends), "messages": len(took), "errors": errs.Load(),
		"p50_ms": at(.5), "p99_ms": at(.99)}
}

// connect opens -n connections, each for one Heartbeat, -c at a time. No TLS session is resumed.
func connect(ctx context.Context, _ [][]byte) map[string]any {
	secured := transport()
	var left, errs atomic.Int64
	left.Store(*n)
	var wg sync.WaitGroup
	t0 := time.Now()
	for w := 0; w < *c; w++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for left.Add(-1) >= 0 {
				one, err := open(ctx, secured)
				if err != nil && errs.Add(1) == 1 {
					fmt.Fprintln(os.Stderr, "first error:", err)
				}
				if one != nil {
					one.Close()
				}
			}
		}()
	}
	wg.Wait()
	return map[string]any{"secs": time.Since(t0).Seconds(), "calls": *n, "errors": errs.Load()}
}

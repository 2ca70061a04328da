// Command replay sends requests that were made before, as fast as a server answers, and prints one JSON line of figures.
//
//	replay call    -addr A -method SendMessage [-stream] -c 64 < requests > answers
//	replay consume -addr A -c 8 -n 10000 [-ack=false]          < requests > "message id, handle" lines
//	replay latency -addr A -c 8 -rate 500                      < one ReceiveMessage, then SendMessage requests
//	replay connect -addr A -c 8 -n 1000                        < nothing
//
// Requests and answers are frames: four bytes of length (big-endian), then the bytes. `call` sends each request once; with
// -stream it counts the messages of the answers (field 2) and writes none. `consume` sends its ReceiveMessage requests in
// turn until -n messages came, and acknowledges each batch. `latency` and `connect` stand in timing.go. Nothing is parsed
// here that need not be, so that a Python server is what limits the figures. With -ca all of it goes over TLS, with -cert
// and -key as well the client shows a certificate.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const service = "/apache.rocketmq.v2.MessagingService/"

var (
	addr    = flag.String("addr", "", "server")
	method  = flag.String("method", "SendMessage", "call: name of the RPC, or its whole path")
	stream  = flag.Bool("stream", false, "call: the server answers with a stream")
	c       = flag.Int("c", 64, "requests in flight")
	conns   = flag.Int("conns", 2, "connections")
	n       = flag.Int64("n", 0, "consume: messages; connect: connections")
	ack     = flag.Bool("ack", true, "consume: acknowledge each batch with one request")
	id      = flag.String("id", "replay", "client id")
	timeout = flag.Duration("timeout", 60*time.Second, "whole run")
	rate    = flag.Float64("rate", 500, "latency: messages a second")
	ca      = flag.String("ca", "", "PEM file of authorities: call with TLS")
	cert    = flag.String("cert", "", "PEM file with a client certificate")
	key     = flag.String("key", "", "PEM file with its key")
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

// raw is a codec that leaves bytes as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *(v.(*[]byte)), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*(v.(*[]byte)) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

func requests() [][]byte {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	var all [][]byte
	for {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err == io.EOF {
			return all
		} else {
			must(err)
		}
		one := make([]byte, binary.BigEndian.Uint32(size[:]))
		_, err := io.ReadFull(in, one)
		must(err)
		all = append(all, one)
	}
}

func transport() credentials.TransportCredentials {
	if *ca == "" {
		return insecure.NewCredentials()
	}
	pem, err := os.ReadFile(*ca)
	must(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		must(fmt.Errorf("no certificate in %s", *ca))
	}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		must(err)
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config)
}

func open(ctx context.Context, secured credentials.TransportCredentials) (*grpc.ClientConn, error) {
	one, err := grpc.NewClient(*addr, grpc.WithTransportCredentials(secured),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	_, err = v2.NewMessagingServiceClient(one).Heartbeat(headers(ctx), &v2.HeartbeatRequest{ClientType: v2.ClientType_PRODUCER})
	return one, err
}

func dial(ctx context.Context) []*grpc.ClientConn {
	all := make([]*grpc.ClientConn, *conns)
	secured := transport()
	for i := range all {
		one, err := open(ctx, secured)
		must(err)
		all[i] = one
	}
	return all
}

func path() string {
	if strings.HasPrefix(*method, "/") {
		return *method
	}
	return service + *method
}

func headers(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", *id, "x-mq-language", "GO",
		"x-mq-client-version", "5.1.3", "x-mq-protocol", "v2", "x-mq-namespace", "")
}

func call(ctx context.Context, all [][]byte) map[string]any {
	dialled := dial(ctx)
	answers := make([][]byte, len(all))
	var next, messages, errs atomic.Int64
	var wg sync.WaitGroup
	t0 := time.Now()
	for w := 0; w < *c; w++ {
		wg.Add(1)
		go func(conn *grpc.ClientConn) {
			defer wg.Done()
			for {
				at := next.Add(1) - 1
				if at >= int64(len(all)) {
					return
				}
				var err error
				if *stream {
					var got int64
					got, err = streamed(ctx, conn, all[at])
					messages.Add(got)
				} else {
					err = conn.Invoke(headers(ctx), path(), &all[at], &answers[at], grpc.ForceCodec(raw{}))
				}
				if err != nil && errs.Add(1) == 1 {
					fmt.Fprintln(os.Stderr, "first error:", err)
				}
			}
		}(dialled[w%len(dialled)])
	}
	wg.Wait()
	took := time.Since(t0).Seconds()
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	defer out.Flush()
	if !*stream {
		for _, one := range answers {
			must(binary.Write(out, binary.BigEndian, uint32(len(one))))
			out.Write(one)
		}
	}
	return map[string]any{"secs": took, "calls": len(all), "messages": messages.Load(), "errors": errs.Load()}
}

func streamed(ctx context.Context, conn *grpc.ClientConn, request []byte) (int64, error) {
	st, err := conn.NewStream(headers(ctx), &grpc.StreamDesc{ServerStreams: true}, path(), grpc.ForceCodec(raw{}))
	if err != nil {
		return 0, err
	}
	if err := st.SendMsg(&request); err != nil {
		return 0, err
	}
	if err := st.CloseSend(); err != nil {
		return 0, err
	}
	var got int64
	for {
		var frame []byte
		if err := st.RecvMsg(&frame); err == io.EOF {
			return got, nil
		} else if err != nil {
			return got, err
		}
		if len(frame) > 0 && frame[0] == 0x12 {
			got++
		}
	}
}

func consume(ctx context.Context, all [][]byte) map[string]any {
	dialled := dial(ctx)
	rctx, stop := context.WithCancel(ctx)
	defer stop()
	asked := make([]*v2.ReceiveMessageRequest, len(all))
	for i, one := range all {
		asked[i] = &v2.ReceiveMessageRequest{}
		must(proto.Unmarshal(one, asked[i]))
	}
	var mu sync.Mutex
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	defer out.Flush()
	var got, errs, batches atomic.Int64
	var wg sync.WaitGroup
	t0 := time.Now()
	for w := 0; w < *c; w++ {
		wg.Add(1)
		go func(w int) {
			defer wg.Done()
			cl := v2.NewMessagingServiceClient(dialled[w%len(dialled)])
			for turn := w; got.Load() < *n && rctx.Err() == nil; turn++ {
				entries, err := received(rctx, cl, asked[turn%len(asked)])
				if err != nil && rctx.Err() == nil && errs.Add(1) == 1 {
					fmt.Fprintln(os.Stderr, "first error:", err)
				}
				if len(entries) == 0 {
					continue
				}
				batches.Add(1)
				if *ack {
					a := &v2.AckMessageRequest{Group: asked[0].Group, Topic: asked[0].MessageQueue.Topic, Entries: entries}
					r, err := cl.AckMessage(headers(ctx), a)
					if (err != nil || r.Status.Code != v2.Code_OK) && errs.Add(1) == 1 {
						fmt.Fprintln(os.Stderr, "first error of an ack:", err, r.GetStatus())
					}
				}
				if got.Add(int64(len(entries))) >= *n {
					stop()
				}
				if !*ack {
					mu.Lock()
					for _, e := range entries {
						fmt.Fprintln(out, e.MessageId, e.ReceiptHandle)
					}
					mu.Unlock()
				}
			}
		}(w)
	}
	wg.Wait()
	took := time.Since(t0).Seconds()
	return map[string]any{"secs": took, "messages": got.Load(), "batches": batches.Load(), "errors": errs.Load()}
}

func received(ctx context.Context, cl v2.MessagingServiceClient, asked *v2.ReceiveMessageRequest) ([]*v2.AckMessageEntry, error) {
	limited, cancel := context.WithTimeout(headers(ctx), 10*time.Second)
	defer cancel()
	st, err := cl.ReceiveMessage(limited, asked)
	if err != nil {
		return nil, err
	}
	var entries []*v2.AckMessageEntry
	for {
		r, err := st.Recv()
		if err == io.EOF {
			return entries, nil
		} else if err != nil {
			return nil, err // the server takes back what was not taken to the end
		}
		if m := r.GetMessage(); m != nil {
			entries = append(entries, &v2.AckMessageEntry{MessageId: m.SystemProperties.MessageId,
				ReceiptHandle: m.SystemProperties.GetReceiptHandle()})
		} else if s := r.GetStatus(); s != nil && s.Code != v2.Code_OK && s.Code != v2.Code_MESSAGE_NOT_FOUND {
			return nil, fmt.Errorf("%v: %s", s.Code, s.Message)
		}
	}
}

func main() {
	must(flag.CommandLine.Parse(os.Args[2:]))
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	run := map[string]func(context.Context, [][]byte) map[string]any{
		"call": call, "consume": consume, "latency": latency, "connect": connect}[os.Args[1]]
	line, err := json.Marshal(run(ctx, requests()))
	must(err)
	fmt.Fprintln(os.Stderr, string(line))
}

// A consumer that sends each message onward, with OpenTelemetry for Go as its documentation uses it: the RocketMQ SDK has
// no instrumentation, so the program reads the context of a message, records a span, and writes its context into what it
// sends. The exporter is set by OTEL_EXPORTER_OTLP_ENDPOINT.
package main

import (
	"context"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const traceparent = "traceparent"

// The context of a message: its property, or else the protocol's own field.
func contextOf(message *rmq.MessageView) context.Context {
	carrier := propagation.MapCarrier(message.GetProperties())
	if field := message.GetTraceContext(); carrier[traceparent] == "" && field != nil {
		carrier = propagation.MapCarrier{traceparent: *field}
	}
	return propagation.TraceContext{}.Extract(context.Background(), carrier)
}

func forward(endpoint string, topic string, group string, onward string) {
	exporter, err := otlptracegrpc.New(context.Background())
	must(err)
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(resource.Default()))
	tracer := provider.Tracer("forward")
	producer, err := rmq.NewProducer(config(endpoint, ""), rmq.WithTopics(onward))
	must(err)
	must(producer.Start())
	made := consumer(endpoint, topic, group, func(message *rmq.MessageView) rmq.ConsumerResult {
		processing, span := tracer.Start(contextOf(message), "process "+topic, trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End()
		sending, sent := tracer.Start(processing, "send "+onward, trace.WithSpanKind(trace.SpanKindProducer))
		defer sent.End()
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(sending, carrier)
		next := &rmq.Message{Topic: onward, Body: message.GetBody()}
		for key, value := range carrier {
			next.AddProperty(key, value)
		}
		next.AddProperty("number", message.GetProperties()["number"])
		_, err := producer.Send(sending, next)
		must(err)
		say(fields{"got": message.GetProperties()["number"], "attempt": message.GetDeliveryAttempt()})
		return rmq.SUCCESS
	})
	untilLine()
	must(provider.Shutdown(context.Background()))
	must(made.GracefulStop())
	must(producer.GracefulStop())
	say(fields{"done": true})
}

//go:build tools

// Package tools names the programs that tests build from this module.
package tools

import (
	_ "github.com/summerwind/h2spec/cmd/h2spec"
	_ "google.golang.org/grpc/interop/client"
)

// Measures go-diskqueue for `python -m benchmarks --go-diskqueue PATH`. benchmarks/README.md has the protocol.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	diskqueue "github.com/nsqio/go-diskqueue"
)

const (
	module      = "github.com/nsqio/go-diskqueue"
	fileBytes   = 100 << 20
	largest     = 64 << 20
	interval    = 2 * time.Second
	neverSynced = 1 << 40
)

type report struct {
	Messages int     `json:"messages"`
	Seconds  float64 `json:"seconds"`
	Version  string  `json:"version"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func open(dir string, syncEvery int64) diskqueue.Interface {
	quiet := func(diskqueue.LogLevel, string, ...interface{}) {}
	return diskqueue.New("bench", dir, fileBytes, 0, largest, syncEvery, interval, quiet)
}

// put returns when all of count are put, by so many producers at once.
func put(queue diskqueue.Interface, body []byte, count, producers int) {
	var all sync.WaitGroup
	for n := 0; n < producers; n++ {
		all.Add(1)
		go func(share int) {
			defer all.Done()
			for i := 0; i < share; i++ {
				check(queue.Put(body))
			}
		}(count / producers)
	}
	all.Wait()
}

func get(queue diskqueue.Interface, count int) {
	messages := queue.ReadChan()
	for i := 0; i < count; i++ {
		<-messages
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, needed := range info.Deps {
			if needed.Path == module {
				return needed.Version
			}
		}
	}
	return "unknown"
}

func main() {
	workload := flag.String("workload", "put", "put, put-synced or get")
	size := flag.Int("size", 100, "bytes in a message")
	count := flag.Int("count", 1000, "messages")
	producers := flag.Int("producers", 1, "goroutines that put")
	dir := flag.String("dir", ".", "an empty directory")
	flag.Parse()

	body := make([]byte, *size)
	syncEvery := int64(neverSynced)
	if *workload == "put-synced" {
		syncEvery = 1
	}
	queue := open(*dir, syncEvery)
	var start time.Time
	switch *workload {
	case "put", "put-synced":
		start = time.Now()
		put(queue, body, *count, *producers)
	case "get":
		// A backlog that an earlier session left on disk.
		put(queue, body, *count, 1)
		check(queue.Close())
		queue = open(*dir, syncEvery)
		start = time.Now()
		get(queue, *count)
	default:
		check(fmt.Errorf("unknown workload %q", *workload))
	}
	taken := time.Since(start).Seconds()
	check(queue.Close())
	check(json.NewEncoder(os.Stdout).Encode(report{*count, taken, version()}))
}

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"lisarelay"
)

// handler describes the handlers of a worker.
type handler struct {
	Do       []map[string]any
	Of       map[string][]map[string]any
	Sleep    int
	Together int
}

type handled struct {
	Payload string `json:"payload"`
	Attempt int    `json:"attempt"`
}

// work runs handlers, and counts them.
type work struct {
	handler
	stopAfter int
	stop      context.CancelFunc

	mu             sync.Mutex
	begun, ended   int
	running, most  int
	handled        []handled
	enoughHasBegun chan struct{}
}

func (d *driver) work(ctx context.Context, c command) any {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &work{handler: c.Handler, stopAfter: c.StopAfter, stop: stop, handled: []handled{}, enoughHasBegun: make(chan struct{})}
	options := lisarelay.WorkOptions{Lease: duration(c.Lease), MaxPerKey: c.MaxPerKey}
	if c.Concurrency != nil {
		options.Concurrency = *c.Concurrency
	}
	if err := d.client.Work(ctx, c.Topic, w.handle, options); err != nil {
		return result(nil, err)
	}
	return map[string]any{"handled": w.handled, "most": w.most}
}

func (w *work) handle(ctx context.Context, delivery *lisarelay.Delivery) error {
	w.begin()
	defer w.end(delivery)
	if w.Together > 0 {
		<-w.enoughHasBegun
	}
	time.Sleep(time.Duration(w.Sleep) * time.Millisecond)
	do, isGiven := w.Of[string(delivery.Payload)]
	if !isGiven {
		do = w.Do
	}
	n := delivery.Attempt - 1
	if n >= len(do) {
		n = len(do) - 1
	}
	step := do[n]
	if step["fail"] != nil {
		return errors.New(text(step["fail"]))
	}
	if step["wrong"] != nil {
		return lisarelay.Retry(100_000*24*time.Hour, nil)
	}
	if settle, isGiven := step["settle"].(map[string]any); isGiven {
		_, err := delivery.Settle(ctx, outcome(settle))
		return err
	}
	return outcome(step)
}

func (w *work) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	w.running++
	if w.begun == w.Together {
		close(w.enoughHasBegun)
	}
	if w.running > w.most {
		w.most = w.running
	}
}

func (w *work) end(delivery *lisarelay.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.ended++
	w.handled = append(w.handled, handled{string(delivery.Payload), delivery.Attempt})
	if w.ended == w.stopAfter {
		w.stop()
	}
}

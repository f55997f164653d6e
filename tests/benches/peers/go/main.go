// Lisa through its Go client: bulk by SendMany of 500, 500 handlers at once. protocol.rs describes the protocol.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"lisarelay"
)

const (
	size    = 100
	callers = 50
	bulk    = 500
	// The delay of a message that opens connections before the measurement: never due.
	warmUp = 2 * time.Hour
)

var (
	ctx   = context.Background()
	input = bufio.NewReader(os.Stdin)
)

func main() {
	producer, gateway, _ := strings.Cut(os.Args[1], ",")
	lisa, err := lisarelay.New(producer, lisarelay.Options{Gateway: gateway})
	check(err)
	if os.Args[2] == "work" {
		work(lisa)
	} else {
		delay := time.Duration(number(5)) * time.Millisecond
		send(lisa, os.Args[3] == "bulk", number(4), delay, number(6))
	}
}

func send(lisa *lisarelay.Client, inBulk bool, n int, delay time.Duration, rate int) {
	one := func(delay time.Duration) {
		_, err := lisa.Send(ctx, "bench", message(delay), &lisarelay.SendOptions{Delay: delay})
		check(err)
	}
	batch := func(count int) {
		messages := make([]lisarelay.NewMessage, count)
		for i := range messages {
			messages[i] = lisarelay.NewMessage{Payload: message(delay), Options: lisarelay.SendOptions{Delay: delay}}
		}
		results, err := lisa.SendMany(ctx, "bench", messages)
		check(err)
		for _, result := range results {
			check(result.Err)
		}
	}
	one(warmUp)
	awaitGo()
	start := time.Now()
	switch {
	case rate > 0:
		count := max(1, rate/100)
		for sent := 0; sent < n; sent += count {
			time.Sleep(time.Until(start.Add(time.Duration(sent) * time.Second / time.Duration(rate))))
			batch(min(count, n-sent))
		}
	case inBulk:
		for sent := 0; sent < n; sent += bulk {
			batch(min(bulk, n-sent))
		}
	default:
		var all sync.WaitGroup
		for i := 0; i < callers; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for sent := 0; sent < n; sent += callers {
					one(delay)
				}
			}()
		}
		all.Wait()
	}
	fmt.Printf("sent %.6f\n", time.Since(start).Seconds())
	awaitEnd()
}

func work(lisa *lisarelay.Client) {
	handlers := 500
	if len(os.Args) > 3 {
		handlers = number(3)
	}
	awaitGo()
	var seen tally
	go func() {
		check(lisa.Work(ctx, "bench", seen.handle, lisarelay.WorkOptions{Concurrency: handlers}))
	}()
	go seen.tell()
	awaitEnd()
	seen.Lock()
	var line strings.Builder
	for _, ms := range seen.late {
		fmt.Fprintf(&line, " %d", ms)
	}
	fmt.Printf("late%s\n", line.String())
}

// tally holds the messages that the handlers have seen.
type tally struct {
	sync.Mutex
	late []int64
	last int64
}

func (t *tally) handle(_ context.Context, delivery *lisarelay.Delivery) error {
	digits, _, _ := strings.Cut(string(delivery.Payload), " ")
	due, err := strconv.ParseInt(digits, 10, 64)
	check(err)
	t.Lock()
	defer t.Unlock()
	t.last = time.Now().UnixMilli()
	t.late = append(t.late, t.last-due)
	return nil
}

// tell reports every 20 ms how many messages were handled.
func (t *tally) tell() {
	for told := 0; ; time.Sleep(20 * time.Millisecond) {
		t.Lock()
		count, last := len(t.late), t.last
		t.Unlock()
		if count > told {
			told = count
			fmt.Printf("handled %d %d\n", count, last)
		}
	}
}

func message(delay time.Duration) string {
	due := fmt.Sprintf("%d ", time.Now().Add(delay).UnixMilli())
	return due + strings.Repeat("x", size-len(due))
}

func awaitGo() {
	fmt.Println("ready")
	_, err := input.ReadString('\n')
	check(err)
}

func awaitEnd() { _, _ = io.Copy(io.Discard, input) }

func number(at int) int {
	value, err := strconv.Atoi(os.Args[at])
	check(err)
	return value
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func max(a, b int) int { return a + b - min(a, b) }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

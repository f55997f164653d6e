package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"lisarelay"
)

// sendOptions converts options of the HTTP interface.
func sendOptions(fields map[string]any) (options lisarelay.SendOptions) {
	options.ID = text(fields["id"])
	options.Delay = duration(fields["delay"])
	options.DeliverAt = instant(fields["deliver_at"])
	options.Key = text(fields["key"])
	options.MergeKey = text(fields["merge_key"])
	options.Priority = int32(number(fields["priority"]))
	options.TTL = duration(fields["ttl"])
	options.ExpiresAt = instant(fields["expires_at"])
	options.MaxAttempts = number(fields["max_attempts"])
	options.Retry, _ = fields["retry"].(map[string]any)
	options.Replace = text(fields["replace"])
	options.Durability = text(fields["durability"])
	options.EvenIfCancelled = fields["even_if_cancelled"] == true
	if headers, isGiven := fields["headers"].(map[string]any); isGiven {
		options.Headers = map[string]string{}
		for name, value := range headers {
			options.Headers[name] = text(value)
		}
	}
	return options
}

// listOptions converts options of the HTTP interface.
func listOptions(fields map[string]any) (options lisarelay.ListOptions) {
	options.State = text(fields["state"])
	options.Group = text(fields["group"])
	options.Key = text(fields["key"])
	options.Error = text(fields["error"])
	options.Reason = text(fields["reason"])
	options.From = instant(fields["from"])
	options.To = instant(fields["to"])
	options.Order = text(fields["order"])
	options.Limit = number(fields["limit"])
	options.Cursor = text(fields["cursor"])
	return options
}

// outcome converts an outcome of the HTTP interface.
func outcome(fields map[string]any) lisarelay.Outcome {
	for verb, value := range fields {
		details, _ := value.(map[string]any)
		var cause error
		if details["error"] != nil {
			cause = errors.New(text(details["error"]))
		}
		switch verb {
		case "ack":
			return lisarelay.Ack()
		case "retry":
			return lisarelay.Retry(duration(details["after"]), cause)
		case "reject":
			return lisarelay.Reject(cause)
		case "defer":
			if until := instant(details["until"]); !until.IsZero() {
				return lisarelay.DeferUntil(until)
			}
			return lisarelay.Defer(duration(details["after"]))
		}
	}
	return lisarelay.Outcome{}
}

var units = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
var durationPart = regexp.MustCompile(`(-?\d+)(ms|s|m|h|d)`)

func duration(value any) (sum time.Duration) {
	for _, part := range durationPart.FindAllStringSubmatch(text(value), -1) {
		count, err := strconv.Atoi(part[1])
		if err != nil {
			panic(err)
		}
		sum += time.Duration(count) * units[part[2]]
	}
	return sum
}

func instant(value any) (at time.Time) {
	if value != nil {
		if err := at.UnmarshalText([]byte(text(value))); err != nil {
			panic(err)
		}
	}
	return at
}

func number(value any) int {
	count, _ := value.(float64)
	return int(count)
}

func text(value any) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

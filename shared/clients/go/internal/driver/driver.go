package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"lisarelay"
)

type command struct {
	Call string

	URL, Gateway, Manager, Token string
	Timeout                      int
	Tries                        int

	Topic, ID   string
	Key         string
	Group       *string
	IDs         []string
	Payload     string
	Options     map[string]any
	Messages    []map[string]any
	Callers     int
	Outcomes    []map[string]any
	Lease       string
	Settings    map[string]any
	How         string
	Prefix      string
	Limit       int
	Cursor      string
	From, To    any
	DryRun      bool   `json:"dry_run"`
	IfMatch     *int64 `json:"if_match"`
	CreateOnly  bool   `json:"create_only"`
	Schedule    string
	Definition  map[string]any
	Step        string
	Concurrency *int
	MaxPerKey   int `json:"max_per_key"`
	Handler     handler
	StopAfter   int `json:"stop_after"`
}

func (c command) conditions() []lisarelay.Condition {
	var all []lisarelay.Condition
	if c.IfMatch != nil {
		all = append(all, lisarelay.IfMatch(*c.IfMatch))
	}
	if c.CreateOnly {
		all = append(all, lisarelay.CreateOnly())
	}
	return all
}

type driver struct {
	client     *lisarelay.Client
	deliveries []*lisarelay.Delivery
}

func (d *driver) answer(c command) any {
	ctx := context.Background()
	switch c.Call {
	case "client":
		options := lisarelay.Options{Gateway: c.Gateway, Manager: c.Manager, Token: c.Token, Timeout: time.Duration(c.Timeout) * time.Millisecond, Tries: c.Tries}
		client, err := lisarelay.New(c.URL, options)
		d.client = client
		return result(struct{}{}, err)
	case "send":
		return d.send(ctx, c.Topic, c.Payload, c.Options)
	case "send_concurrently":
		return concurrently(c.Messages, c.Callers, func(_ int, message map[string]any) any {
			return d.send(ctx, c.Topic, message["payload"].(string), message)
		})
	case "send_many":
		return d.sendMany(ctx, c)
	case "get":
		found, err := d.client.Get(ctx, c.Topic, c.ID)
		return result(map[string]any{"id": found.ID, "state": found.State, "payload": string(found.Payload)}, err)
	case "cancel":
		cancelled, err := d.client.Cancel(ctx, c.Topic, c.ID)
		return result(map[string]any{"id": cancelled.ID}, err)
	case "reschedule":
		if at := instant(c.Options["deliver_at"]); !at.IsZero() {
			return result(d.client.RescheduleAt(ctx, c.Topic, c.ID, at))
		}
		return result(d.client.Reschedule(ctx, c.Topic, c.ID, duration(c.Options["delay"])))
	case "deliver_now":
		return result(d.client.DeliverNow(ctx, c.Topic, c.ID))
	case "cancel_key":
		done, err := d.client.CancelKey(ctx, c.Topic, c.Key)
		return result(map[string]any{"cancelled": done.Cancelled, "garbage": done.Garbage, "in_flight": done.InFlight, "in_garbage": texts(done.InGarbage)}, err)
	case "reschedule_key":
		done, err := d.rescheduleKey(ctx, c)
		return result(map[string]any{"rescheduled": done.Rescheduled, "garbage": done.Garbage, "in_flight": done.InFlight, "in_garbage": texts(done.InGarbage)}, err)
	case "list":
		page, err := d.client.List(ctx, c.Topic, listOptions(c.Options))
		return result(map[string]any{"messages": page.Messages, "next": page.Next}, err)
	case "requeue":
		group := "default"
		if c.Group != nil {
			group = *c.Group
		}
		done, err := d.client.Requeue(ctx, c.Topic, group, c.IDs)
		return result(map[string]any{"done": done.Done, "found": done.Found, "missing": texts(done.Missing)}, err)
	case "list_topics":
		found, err := d.client.ListTopics(ctx, c.Prefix)
		return result(map[string]any{"topics": found.Topics, "damaged": append([]lisarelay.DamagedTopic{}, found.Damaged...)}, err)
	case "get_topic":
		return result(d.client.GetTopic(ctx, c.Topic))
	case "put_topic":
		return result(d.client.PutTopic(ctx, c.Topic, c.Settings, c.conditions()...))
	case "remove_topic":
		removed, err := d.client.RemoveTopic(ctx, c.Topic, c.How, c.conditions()...)
		return result(map[string]any{"topic": removed.Topic, "removal": removed.Removal, "stored": removed.Stored}, err)
	case "pause_topic":
		return pausedTopic(d.client.PauseTopic(ctx, c.Topic))
	case "resume_topic":
		return pausedTopic(d.client.ResumeTopic(ctx, c.Topic))
	case "pause_group":
		return pausedGroup(d.client.PauseGroup(ctx, c.Topic, *c.Group))
	case "resume_group":
		return pausedGroup(d.client.ResumeGroup(ctx, c.Topic, *c.Group))
	case "drain_group":
		return retiredGroup(d.client.DrainGroup(ctx, c.Topic, *c.Group))
	case "drop_group":
		return retiredGroup(d.client.DropGroup(ctx, c.Topic, *c.Group))
	case "keep_group":
		return retiredGroup(d.client.KeepGroup(ctx, c.Topic, *c.Group))
	case "put_schedule":
		return shownSchedule(d.client.PutSchedule(ctx, c.Schedule, c.Definition, c.conditions()...))
	case "list_schedules":
		page, err := d.client.ListSchedules(ctx, lisarelay.PageOptions{Prefix: c.Prefix, Limit: c.Limit, Cursor: c.Cursor})
		shown := map[string]any{"schedules": page.Schedules, "damaged": append([]lisarelay.DamagedSchedule{}, page.Damaged...)}
		setText(shown, "next", page.Next)
		return result(shown, err)
	case "get_schedule":
		return shownSchedule(d.client.GetSchedule(ctx, c.Schedule))
	case "backfill_schedule":
		done, err := d.client.BackfillSchedule(ctx, c.Schedule, lisarelay.BackfillPeriod{From: instant(c.From), To: instant(c.To), DryRun: c.DryRun})
		shown := map[string]any{"schedule": done.Schedule, "topic": done.Topic, "times": done.Times, "sent": done.Sent, "duplicates": done.Duplicates}
		if !done.Next.IsZero() {
			shown["next"] = done.Next.UnixMilli()
		}
		return result(shown, err)
	case "remove_schedule":
		return result(map[string]any{"removed": true}, d.client.RemoveSchedule(ctx, c.Schedule, c.conditions()...))
	case "pause_schedule":
		paused, err := d.client.PauseSchedule(ctx, c.Schedule)
		return result(map[string]any{"schedule": paused.Schedule, "paused": paused.Paused, "changed": paused.Changed}, err)
	case "resume_schedule":
		resumed, err := d.client.ResumeSchedule(ctx, c.Schedule)
		return result(map[string]any{"schedule": resumed.Schedule, "paused": resumed.Paused, "changed": resumed.Changed}, err)
	case "own_token":
		return result(d.client.OwnToken(ctx))
	case "list_tokens":
		page, err := d.client.ListTokens(ctx, lisarelay.PageOptions{Prefix: c.Prefix, Limit: c.Limit, Cursor: c.Cursor})
		shown := map[string]any{"tokens": page.Tokens, "damaged": append([]lisarelay.DamagedToken{}, page.Damaged...)}
		setText(shown, "next", page.Next)
		return result(shown, err)
	case "get_token":
		return result(d.client.GetToken(ctx, c.Token))
	case "put_token":
		return changedToken(d.client.PutToken(ctx, c.Token, c.Definition, c.conditions()...))
	case "rotate_token":
		step := lisarelay.BeginRotation
		if c.Step != "" {
			step = lisarelay.RotationStep(c.Step)
		}
		return changedToken(d.client.RotateToken(ctx, c.Token, step))
	case "remove_token":
		return result(map[string]any{"removed": true}, d.client.RemoveToken(ctx, c.Token, c.conditions()...))
	case "run_schedule":
		run, err := d.client.RunSchedule(ctx, c.Schedule)
		return result(map[string]any{"schedule": run.Schedule, "topic": run.Topic, "id": run.ID, "sent": run.Sent}, err)
	case "pull":
		return d.pull(ctx, c)
	case "settle":
		return concurrently(d.deliveries, len(d.deliveries), func(n int, delivery *lisarelay.Delivery) any {
			return result(delivery.Settle(ctx, outcome(c.Outcomes[n%len(c.Outcomes)])))
		})
	case "settle_many":
		return d.settleMany(ctx, c)
	case "extend":
		return concurrently(d.deliveries, len(d.deliveries), func(_ int, delivery *lisarelay.Delivery) any {
			return result(delivery.Extend(ctx, duration(c.Lease)))
		})
	case "work":
		return d.work(ctx, c)
	}
	return result(nil, errors.New("unknown call: "+c.Call))
}

func (d *driver) send(ctx context.Context, topic, payload string, options map[string]any) any {
	converted := sendOptions(options)
	return result(d.client.Send(ctx, topic, payload, &converted))
}

func (d *driver) sendMany(ctx context.Context, c command) any {
	messages := make([]lisarelay.NewMessage, len(c.Messages))
	for n, message := range c.Messages {
		messages[n] = lisarelay.NewMessage{Payload: message["payload"], Options: sendOptions(message)}
	}
	sent, err := d.client.SendMany(ctx, c.Topic, messages)
	return results(sent, err)
}

func shownSchedule(found lisarelay.Schedule, err error) any {
	next := make([]int64, len(found.NextTimes))
	for n, at := range found.NextTimes {
		next[n] = at.UnixMilli()
	}
	shown := map[string]any{"schedule": found.Schedule, "topic": found.Topic, "declared_in_file": found.DeclaredInFile, "definition": found.Definition, "next_times": next, "warnings": texts(found.Warnings)}
	if found.Version != 0 {
		shown["version"] = found.Version
	}
	return result(shown, err)
}

func pausedTopic(paused lisarelay.TopicPaused, err error) any {
	return result(map[string]any{"topic": paused.Topic, "paused": paused.Paused, "changed": paused.Changed}, err)
}

func pausedGroup(paused lisarelay.GroupPaused, err error) any {
	return result(map[string]any{"topic": paused.Topic, "group": paused.Group, "paused": paused.Paused, "changed": paused.Changed}, err)
}

func retiredGroup(retired lisarelay.GroupRetired, err error) any {
	shown := map[string]any{"topic": retired.Topic, "group": retired.Group, "changed": retired.Changed, "left": retired.Left, "configured": retired.Configured, "messages_wait": retired.MessagesWait}
	setText(shown, "retiring", retired.Retiring)
	return result(shown, err)
}

func changedToken(changed lisarelay.ChangedToken, err error) any {
	shown := map[string]any{"token": changed.Token, "version": changed.Version, "scopes": texts(changed.Scopes), "is_rotating": changed.IsRotating}
	if changed.Secret != "" {
		shown["secret"] = changed.Secret
	}
	return result(shown, err)
}

func (d *driver) rescheduleKey(ctx context.Context, c command) (lisarelay.RescheduledKey, error) {
	if at := instant(c.Options["deliver_at"]); !at.IsZero() {
		return d.client.RescheduleKeyAt(ctx, c.Topic, c.Key, at)
	}
	return d.client.RescheduleKey(ctx, c.Topic, c.Key, duration(c.Options["delay"]))
}

func (d *driver) pull(ctx context.Context, c command) any {
	options := lisarelay.PullOptions{Wait: duration(c.Options["wait"]), Lease: duration(c.Options["lease"])}
	options.Max = number(c.Options["max"])
	options.MaxPerKey = number(c.Options["max_per_key"])
	options.MaxKeys = number(c.Options["max_keys"])
	options.Group = text(c.Options["group"])
	deliveries, err := d.client.Pull(ctx, c.Topic, options)
	if err != nil {
		return result(nil, err)
	}
	d.deliveries = deliveries
	pulled := make([]any, len(deliveries))
	for n, one := range deliveries {
		pulled[n] = map[string]any{"id": one.ID, "attempt": one.Attempt, "payload": string(one.Payload)}
	}
	return pulled
}

func (d *driver) settleMany(ctx context.Context, c command) any {
	settlements := make([]lisarelay.Settlement, len(d.deliveries))
	for n, delivery := range d.deliveries {
		settlements[n] = lisarelay.Settlement{Token: delivery.Token, Outcome: outcome(c.Outcomes[n%len(c.Outcomes)])}
	}
	ended, err := d.client.SettleMany(ctx, settlements)
	return results(ended, err)
}

// concurrently calls a function for each value, a limited number at a time. It returns the results in order.
func concurrently[T any](values []T, atOnce int, call func(n int, value T) any) []any {
	answers := make([]any, len(values))
	slots := make(chan struct{}, atOnce+1)
	var all sync.WaitGroup
	for n, value := range values {
		all.Add(1)
		go func(n int, value T) {
			defer all.Done()
			slots <- struct{}{}
			answers[n] = call(n, value)
			<-slots
		}(n, value)
	}
	all.Wait()
	return answers
}

func results[T any](all []lisarelay.Result[T], err error) any {
	if err != nil {
		return result(nil, err)
	}
	converted := make([]any, len(all))
	for n, one := range all {
		converted[n] = result(one.Value, one.Err)
	}
	return converted
}

func result(value any, err error) any {
	if err == nil {
		return value
	}
	fields := map[string]any{"kind": "argument", "message": err.Error()}
	var failure lisarelay.Error
	var problem *lisarelay.Problem
	if errors.As(err, &failure) {
		fields["kind"], fields["retryable"] = "transport", failure.Retryable()
		setText(fields, "id", failure.MessageID())
	}
	if errors.As(err, &problem) {
		fields["kind"], fields["status"], fields["maybe_settled"] = "problem", problem.Status, problem.MaybeSettled
		setText(fields, "code", problem.Code)
		setText(fields, "ended", problem.Ended)
	}
	return map[string]any{"error": fields}
}

// texts returns a list that is not null in JSON.
func texts(all []string) []string { return append([]string{}, all...) }

func setText(fields map[string]any, name, value string) {
	if value != "" {
		fields[name] = value
	}
}

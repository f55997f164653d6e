package lisarelay

import (
	"context"
	"net/http"
	"time"
)

// Topic is a topic with the settings in force.
type Topic struct {
	// Topic is its name.
	Topic string `json:"topic"`
	// Epoch grows with each change of the topic, and goes on if the topic is created again.
	Epoch int64 `json:"epoch"`
	// Settings are the settings, as JSON has them.
	Settings map[string]any `json:"settings"`
	// Groups are all its groups, including those that the settings do not name.
	Groups []string `json:"groups"`
	// Removal is "drain" or "force" if it is being removed.
	Removal string `json:"removal"`
	// Resharding is true while its number of shards is changed.
	Resharding bool `json:"resharding"`
}

// TopicList lists topics by name.
type TopicList struct {
	// Topics are the topics, with their settings.
	Topics []Topic `json:"topics"`
	// Damaged are those whose settings cannot be read.
	Damaged []DamagedTopic `json:"damaged"`
}

// DamagedTopic is a topic whose settings cannot be read.
type DamagedTopic struct {
	// Topic is its name.
	Topic string `json:"topic"`
	// Error is the reason.
	Error string `json:"error"`
}

// TopicDetails is a topic with its settings, groups and counts.
type TopicDetails struct {
	// Topic is its name.
	Topic string `json:"topic"`
	// Epoch grows with each change of the topic, and goes on if the topic is created again.
	Epoch int64 `json:"epoch"`
	// CreatedAt is the time at which it was created. It is zero if that is not known.
	CreatedAt time.Time `json:"created_at"`
	// Settings are the settings, as JSON has them.
	Settings map[string]any `json:"settings"`
	// Removal is "drain" or "force" if it is being removed.
	Removal string `json:"removal"`
	// Groups are all its groups, with their counts.
	Groups []GroupStats `json:"groups"`
	// Stats are its counts.
	Stats TopicStats `json:"stats"`
}

// TopicStats are the numbers of messages of a topic, at one instant of each shard.
type TopicStats struct {
	// Stored are those that are stored, including garbage (dead letters). Each counts once, for any number of groups.
	Stored int64 `json:"stored"`
	// Waiting are those that are not yet due.
	Waiting int64 `json:"waiting"`
	// NextDue is the time at which the next one is due, or zero.
	NextDue time.Time `json:"next_due"`
	// OverdueMs is the age of the oldest one that is due and that no consumer holds, in milliseconds.
	OverdueMs int64 `json:"overdue_ms"`
	// Tombstones are the ended ids that are remembered for the dedup_window.
	Tombstones int64 `json:"tombstones"`
	// Paused is true if the topic is paused.
	Paused bool `json:"paused"`
	// Bytes is the size of those that are stored, if max_bytes limits it.
	Bytes int64 `json:"bytes"`
	// Full is true if a shard refuses sends.
	Full bool `json:"full"`
	// Migrating are those that are still on retiring shards, while the number of shards is changed.
	Migrating int64 `json:"migrating"`
	// Counters are the counters since the topic was created.
	Counters map[string]int64 `json:"counters"`
	// ConservationError must be 0.
	ConservationError int64 `json:"conservation_error"`
}

// GroupStats are the numbers of messages of a group by state, at one instant of each shard.
type GroupStats struct {
	// Group is its name.
	Group string `json:"group"`
	// Backlog are those that are due, and held back by a limit or a pause.
	Backlog int64 `json:"backlog"`
	// Parked are those that are due, behind an earlier message of their ordering key.
	Parked int64 `json:"parked"`
	// Ready are those that no consumer has read yet.
	Ready int64 `json:"ready"`
	// InFlight are those that consumers hold.
	InFlight int64 `json:"in_flight"`
	// Retry are those that wait for their next attempt.
	Retry int64 `json:"retry"`
	// Garbage are those in garbage (dead letters).
	Garbage int64 `json:"garbage"`
	// Consumers is the number of consumers that have reported within the last 30 s.
	Consumers int64 `json:"consumers"`
	// OldestDueAgeMs is the age of the oldest one that is due and that no consumer holds, in milliseconds since its due time.
	OldestDueAgeMs int64 `json:"oldest_due_age_ms"`
	// OldestReadyAgeMs is the age of the first ready one that no consumer has read, in milliseconds since its due time.
	OldestReadyAgeMs int64 `json:"oldest_ready_age_ms"`
	// Configured is true if the settings name the group.
	Configured bool `json:"configured"`
	// Paused is true if the group is paused.
	Paused bool `json:"paused"`
	// Retiring is "drain" or "drop" if the group is being removed.
	Retiring string `json:"retiring"`
	// Instance is true if the group belongs to one running consumer. Settings never name it.
	Instance bool `json:"instance"`
	// NeverRead is true if messages are ready, and no consumer has ever read one.
	NeverRead bool `json:"never_read"`
}

// TopicRemoval is a topic that is being removed.
type TopicRemoval struct {
	// Topic is its name.
	Topic string
	// Removal is "drain" or "force". A removal by force stays one.
	Removal string
	// Stored is the number of messages that it still stores.
	Stored int
}

func (t *Topic) isComplete() bool {
	return t.Topic != "" && t.Epoch != 0 && t.Settings != nil && t.Groups != nil
}

// ListTopics lists the topics whose name starts with a prefix, or all if it is empty, with their settings. The manager answers it.
func (c *Client) ListTopics(ctx context.Context, prefix string) (TopicList, error) {
	b := newBody()
	b.text("prefix", prefix)
	query, err := b.query()
	if err != nil {
		return TopicList{}, err
	}
	// Up to 10,000 topics.
	r := request{method: http.MethodGet, query: query, to: toManager, hasPayloads: true}
	isComplete := func(a *TopicList) bool { return a.Topics != nil && all(a.Topics, (*Topic).isComplete) }
	return lookup(ctx, c, r, []string{"topics"}, nil, isComplete)
}

// GetTopic returns a topic with its settings, groups and counts. The manager answers it. The error is a [Problem] with the code
// "unknown_topic" if there is none.
func (c *Client) GetTopic(ctx context.Context, topic string) (TopicDetails, error) {
	r := request{method: http.MethodGet, to: toManager}
	isComplete := func(a *TopicDetails) bool {
		return a.Topic != "" && a.Epoch != 0 && a.Settings != nil && a.Stats.Counters != nil && a.Groups != nil &&
			all(a.Groups, func(g *GroupStats) bool { return g.Group != "" })
	}
	return lookup(ctx, c, r, []string{"topics", topic}, nil, isComplete)
}

// PutTopic creates a topic, or replaces its settings: those of topics.NAME in the configuration, such as {"lease": "1m"}. One that is
// missing has the value of topic_defaults of the manager, and a number of shards stays. The manager answers it. If its configuration
// declares the topic, the error is a [Problem] with the code "declared_in_file". If a condition is not met, and the topic does not have
// these settings already, it has the code "precondition_failed".
func (c *Client) PutTopic(ctx context.Context, topic string, settings map[string]any, condition ...Condition) (Topic, error) {
	b := newBody()
	for name, value := range settings {
		b.fields[name] = value
	}
	content, err := b.json()
	if err != nil {
		return Topic{}, err
	}
	r := request{method: http.MethodPut, content: content, to: toManager}
	if err := r.add(condition); err != nil {
		return Topic{}, err
	}
	return lookup(ctx, c, r, []string{"topics", topic}, nil, (*Topic).isComplete)
}

// RemoveTopic removes a topic: with how "drain" once it has delivered its messages, with "force" together with them. From then on, it
// accepts no new messages. The manager answers it. The error is a [Problem] with the code "not_empty" if the topic has messages and how
// is empty, with "declared_in_file" if the configuration of the manager declares it, and with "unknown_topic" if there is none, also if
// an earlier try without an answer has removed it. With [IfMatch], it has the code "precondition_failed" if the topic has another epoch,
// unless it is being removed in this way already.
func (c *Client) RemoveTopic(ctx context.Context, topic, how string, condition ...Condition) (TopicRemoval, error) {
	r := request{method: http.MethodDelete, to: toManager}
	if err := r.add(condition); err != nil {
		return TopicRemoval{}, err
	}
	switch how {
	case "":
	case "drain", "force":
		r.query = "?how=" + how
	default:
		return TopicRemoval{}, wrong("how: %q is neither drain nor force", how)
	}
	type removal struct {
		Topic   string `json:"topic"`
		Removal string `json:"removal"`
		Stored  *int   `json:"stored"`
	}
	isComplete := func(a *removal) bool { return a.Topic != "" && a.Removal != "" && a.Stored != nil }
	answer, err := lookup(ctx, c, r, []string{"topics", topic}, nil, isComplete)
	if err != nil {
		return TopicRemoval{}, err
	}
	return TopicRemoval{answer.Topic, answer.Removal, *answer.Stored}, nil
}

// all returns true if a function does for each item.
func all[T any](items []T, holds func(*T) bool) bool {
	for n := range items {
		if !holds(&items[n]) {
			return false
		}
	}
	return true
}

package lisarelay

import (
	"context"
	"net/http"
)

// TopicPaused is a topic that was paused or resumed.
type TopicPaused struct {
	// Topic is its name.
	Topic string
	// Paused is true if it is paused.
	Paused bool
	// Changed is false if it was in that state already.
	Changed bool
}

// GroupPaused is a group that was paused or resumed.
type GroupPaused struct {
	// Topic is the name of its topic.
	Topic string
	// Group is its name.
	Group string
	// Paused is true if it is paused.
	Paused bool
	// Changed is false if it was in that state already.
	Changed bool
}

// GroupRetired is a group that was drained, dropped or kept.
type GroupRetired struct {
	// Topic is the name of its topic.
	Topic string
	// Group is its name.
	Group string
	// Retiring is "drain" or "drop", and empty if the group is kept.
	Retiring string
	// Changed is false if it was in that state already.
	Changed bool
	// Left is the number of messages that it still has.
	Left int64
	// Configured is true if the settings of the topic name it: the next start of a manager, or change of the topic, creates it again.
	Configured bool
	// MessagesWait is true if no group of the topic gets messages: due ones wait until one does.
	MessagesWait bool
}

type paused struct {
	Topic   string `json:"topic"`
	Group   string `json:"group"`
	Paused  *bool  `json:"paused"`
	Changed *bool  `json:"changed"`
}

// PauseTopic pauses a topic: due messages collect in the backlog of each group. The manager answers it. The error is a [Problem] with
// the code "unknown_topic" if there is none.
func (c *Client) PauseTopic(ctx context.Context, topic string) (TopicPaused, error) {
	return c.pauseTopic(ctx, topic, "pause")
}

// ResumeTopic resumes a paused topic. The manager answers it. The error is a [Problem] with the code "unknown_topic" if there is none.
func (c *Client) ResumeTopic(ctx context.Context, topic string) (TopicPaused, error) {
	return c.pauseTopic(ctx, topic, "resume")
}

// PauseGroup pauses a group: messages that become due for it collect in its backlog. Other groups are not affected. The manager answers
// it. The error is a [Problem] with the code "not_found" if there is no such group.
func (c *Client) PauseGroup(ctx context.Context, topic, group string) (GroupPaused, error) {
	return c.pauseGroup(ctx, topic, group, "pause")
}

// ResumeGroup resumes a paused group. The manager answers it. The error is a [Problem] with the code "not_found" if there is no such
// group.
func (c *Client) ResumeGroup(ctx context.Context, topic, group string) (GroupPaused, error) {
	return c.pauseGroup(ctx, topic, group, "resume")
}

// DrainGroup drains a group: it gets no new messages, and is removed within a minute after its last one is finished. If the
// configuration of the manager does not declare the topic, its settings then do not name the group any more. The manager answers it. The
// error is a [Problem] with the code "not_found" if there is no such group, also if it is gone since an earlier try without an answer.
func (c *Client) DrainGroup(ctx context.Context, topic, group string) (GroupRetired, error) {
	return c.retireGroup(ctx, topic, group, "drain")
}

// DropGroup drops the messages of a group, which cannot be undone, and removes it. It drops messages for up to 2 s, and a manager begins
// to drop those that are left within a minute. For the settings of the topic and the errors, see [Client.DrainGroup].
func (c *Client) DropGroup(ctx context.Context, topic, group string) (GroupRetired, error) {
	return c.retireGroup(ctx, topic, group, "drop")
}

// KeepGroup cancels a drain or drop: the group gets messages again, except those dropped or due in the meantime. If the configuration of
// the manager does not declare the topic, its settings name the group again. The manager answers it. The error is a [Problem] with the
// code "not_found" if there is no such group.
func (c *Client) KeepGroup(ctx context.Context, topic, group string) (GroupRetired, error) {
	return c.retireGroup(ctx, topic, group, "keep")
}

func (c *Client) pauseTopic(ctx context.Context, topic, verb string) (TopicPaused, error) {
	isComplete := func(a *paused) bool { return a.Topic != "" && a.Paused != nil && a.Changed != nil }
	answer, err := lookup(ctx, c, request{method: http.MethodPost, to: toManager}, []string{"topics", topic, verb}, nil, isComplete)
	if err != nil {
		return TopicPaused{}, err
	}
	return TopicPaused{answer.Topic, *answer.Paused, *answer.Changed}, nil
}

func (c *Client) pauseGroup(ctx context.Context, topic, group, verb string) (GroupPaused, error) {
	isComplete := func(a *paused) bool { return a.Topic != "" && a.Group != "" && a.Paused != nil && a.Changed != nil }
	answer, err := changeGroup(ctx, c, topic, group, verb, isComplete)
	if err != nil {
		return GroupPaused{}, err
	}
	return GroupPaused{answer.Topic, answer.Group, *answer.Paused, *answer.Changed}, nil
}

func (c *Client) retireGroup(ctx context.Context, topic, group, verb string) (GroupRetired, error) {
	type retired struct {
		Topic        string `json:"topic"`
		Group        string `json:"group"`
		Retiring     string `json:"retiring"`
		Changed      *bool  `json:"changed"`
		Left         *int64 `json:"left"`
		Configured   bool   `json:"configured"`
		MessagesWait bool   `json:"messages_wait"`
	}
	isComplete := func(a *retired) bool { return a.Topic != "" && a.Group != "" && a.Changed != nil && a.Left != nil }
	answer, err := changeGroup(ctx, c, topic, group, verb, isComplete)
	if err != nil {
		return GroupRetired{}, err
	}
	return GroupRetired{answer.Topic, answer.Group, answer.Retiring, *answer.Changed, *answer.Left, answer.Configured, answer.MessagesWait}, nil
}

func changeGroup[T any](ctx context.Context, c *Client, topic, group, verb string, isComplete func(*T) bool) (T, error) {
	r := request{method: http.MethodPost, to: toManager}
	return lookup(ctx, c, r, []string{"topics", topic, "groups", group, verb}, nil, isComplete)
}

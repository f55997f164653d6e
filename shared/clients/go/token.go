package lisarelay

import (
	"context"
	"net/http"
	"time"
)

// Token is a token, without its secret.
type Token struct {
	// Token is its name.
	Token string `json:"token"`
	// Scopes are its scopes.
	Scopes []string `json:"scopes"`
	// DeclaredInFile is true if the configuration of the manager declares it.
	DeclaredInFile bool `json:"declared_in_file"`
	// Topics are the topics that it reaches. Nil stands for all.
	Topics []string `json:"topics"`
	// Groups are the groups that it reaches. Nil stands for all.
	Groups []string `json:"groups"`
	// Schedules are the schedules that it reaches. Nil stands for those whose names are in Topics.
	Schedules []string `json:"schedules"`
	// Expires is the time from which it is refused, or zero.
	Expires time.Time `json:"expires"`
	// HasExpired is true if that time has come.
	HasExpired bool `json:"has_expired"`
	// SendsPerSecond is the number of messages that it may send in a second, in each process. Nil stands for any.
	SendsPerSecond *int64 `json:"sends_per_second"`
	// MaxTopics is the largest number of topics that it reaches. As for each quota, nil stands for any.
	MaxTopics *int64 `json:"max_topics"`
	// MaxStreams is the largest number of streams of these topics: one for each group on each shard.
	MaxStreams *int64 `json:"max_streams"`
	// MaxMessages is the largest sum of max_messages of these topics.
	MaxMessages *int64 `json:"max_messages"`
	// MaxBytes is the largest sum of max_bytes of these topics.
	MaxBytes *int64 `json:"max_bytes"`
	// MaxSchedules is the largest number of stored schedules with the names that it reaches.
	MaxSchedules *int64 `json:"max_schedules"`
	// IsRotating is true while its previous secret is accepted as well.
	IsRotating bool `json:"is_rotating"`
	// PreviousUsed is the time at which its previous secret was last used, or zero if that is not known.
	PreviousUsed time.Time `json:"previous_used"`
	// Version grows with each change of the token. It is zero if the configuration of the manager declares it, and in one's own token.
	Version int64 `json:"version"`
	// Created is the time of its creation. It is zero if Version is.
	Created time.Time `json:"created"`
	// CreatedBy is the name of the token or user that has created it, if that is known.
	CreatedBy string `json:"created_by"`
	// HidesStored is true if a token of this name is also stored; that of the configuration is accepted.
	HidesStored bool `json:"hides_stored"`
}

// OwnToken is the token of a client, and what is used of its quotas.
type OwnToken struct {
	Token
	// Used is the used part of each quota.
	Used QuotaUse `json:"used"`
}

// QuotaUse is the used part of each quota of a token, also by other tokens that reach the same names. It is nil without the quota.
type QuotaUse struct {
	// Topics is the number of topics.
	Topics *int64 `json:"topics"`
	// Streams is the number of their streams.
	Streams *int64 `json:"streams"`
	// Messages is the sum of max_messages of the topics. One without it counts as an equal part, and one that holds more as what it holds.
	Messages *int64 `json:"messages"`
	// Bytes is the same for max_bytes.
	Bytes *int64 `json:"bytes"`
	// Schedules is the number of stored schedules.
	Schedules *int64 `json:"schedules"`
}

// TokenPage is a page of tokens by name.
type TokenPage struct {
	// Tokens are the tokens.
	Tokens []Token
	// Next is the cursor of the next page, or empty if this is the last one.
	Next string
	// Damaged are those whose record cannot be read. They are not accepted.
	Damaged []DamagedToken
}

// DamagedToken is a token whose record cannot be read.
type DamagedToken struct {
	// Token is its name.
	Token string `json:"token"`
	// Error is the reason.
	Error string `json:"error"`
}

// ChangedToken is a token that was created by call.
type ChangedToken struct {
	// Token is its name.
	Token string
	// Version changes whenever the token does.
	Version int64
	// Scopes are its scopes.
	Scopes []string
	// IsRotating is true while its previous secret is accepted as well.
	IsRotating bool
	// Secret is what its holder sends as a bearer token, if this call has generated it. No later call returns it.
	Secret string
}

// RotationStep is a step of the replacement of a token's secret.
type RotationStep string

const (
	// BeginRotation generates a secret, and the previous one is accepted as well.
	BeginRotation RotationStep = "begin"
	// FinishRotation accepts only the new secret.
	FinishRotation RotationStep = "finish"
	// CancelRotation accepts only the previous secret.
	CancelRotation RotationStep = "cancel"
)

func (t *Token) isComplete() bool { return t.Token != "" && t.Scopes != nil }

// OwnToken returns the token of the client: its scopes, what it reaches, its quotas and what is used of them. The manager answers it, and
// it needs a token with any scope. The error is a [Problem] with the code "not_found" if no tokens are configured.
func (c *Client) OwnToken(ctx context.Context) (OwnToken, error) {
	r := request{method: http.MethodGet, to: toManager}
	return lookup(ctx, c, r, []string{"token"}, nil, func(a *OwnToken) bool { return a.isComplete() })
}

// ListTokens lists tokens by name, without their secrets, a page at a time. The manager answers it, and it needs the scope "tokens".
func (c *Client) ListTokens(ctx context.Context, options PageOptions) (TokenPage, error) {
	query, err := options.query()
	if err != nil {
		return TokenPage{}, err
	}
	type page struct {
		Tokens  []Token        `json:"tokens"`
		Next    string         `json:"next"`
		Damaged []DamagedToken `json:"damaged"`
	}
	r := request{method: http.MethodGet, query: query, to: toManager}
	isComplete := func(a *page) bool {
		return a.Tokens != nil && len(a.Tokens) <= options.most() && all(a.Tokens, (*Token).isComplete)
	}
	answer, err := lookup(ctx, c, r, []string{"tokens"}, nil, isComplete)
	return TokenPage(answer), err
}

// GetToken returns a token, without its secret. The manager answers it, and it needs the scope "tokens". The error is a [Problem] with the
// code "not_found" if there is none.
func (c *Client) GetToken(ctx context.Context, token string) (Token, error) {
	r := request{method: http.MethodGet, to: toManager}
	return lookup(ctx, c, r, []string{"tokens", token}, nil, (*Token).isComplete)
}

// PutToken creates a token, or replaces its permissions. Its fields are those of "PUT /v1/tokens/{token}". The manager generates the
// Secret of a new token, unless there is a "sha256", and only this call returns it. A failed call is not repeated, because a repeat would
// not return the secret: rotate the token then. The manager answers it, and it needs the scope "tokens". The error is a [Problem] with
// the code "declared_in_file" if the configuration of the manager declares the token. If a condition is not met, and the token is not as
// the definition says already, it has the code "precondition_failed".
func (c *Client) PutToken(ctx context.Context, token string, definition map[string]any, condition ...Condition) (ChangedToken, error) {
	b := newBody()
	for name, value := range definition {
		b.fields[name] = value
	}
	return c.changeToken(ctx, http.MethodPut, []string{"tokens", token}, b, condition)
}

// RotateToken replaces the secret of a token, one step at a time. A failed call is not repeated. If the new secret is lost, cancel and
// begin again. The manager answers it. The error is a [Problem] with the code "busy" if a rotation has begun already, with
// "declared_in_file" if the configuration of the manager declares the token, and with "not_found" if there is none.
func (c *Client) RotateToken(ctx context.Context, token string, step RotationStep) (ChangedToken, error) {
	b := newBody()
	b.fields["step"] = string(step)
	return c.changeToken(ctx, http.MethodPost, []string{"tokens", token, "rotate"}, b, nil)
}

// RemoveToken removes a token: no process accepts it a few seconds later. The manager answers it. The error is a [Problem] with the code
// "declared_in_file" if the configuration of the manager declares the token, and with "not_found" if there is none, also if an earlier
// try without an answer has removed it. With [IfMatch], it has the code "precondition_failed" if the token has another version.
func (c *Client) RemoveToken(ctx context.Context, token string, condition ...Condition) error {
	where, err := path("tokens", token)
	if err != nil {
		return err
	}
	r := request{method: http.MethodDelete, path: where, to: toManager, noContent: true}
	if err := r.add(condition); err != nil {
		return err
	}
	return c.call(ctx, r, func([]byte) error { return nil })
}

func (c *Client) changeToken(ctx context.Context, method string, where []string, b *body, condition []Condition) (ChangedToken, error) {
	type changed struct {
		Token      string   `json:"token"`
		Version    int64    `json:"version"`
		Scopes     []string `json:"scopes"`
		IsRotating *bool    `json:"is_rotating"`
		Secret     string   `json:"secret"`
	}
	content, err := b.json()
	if err != nil {
		return ChangedToken{}, err
	}
	r := request{method: method, content: content, to: toManager, isSentOnce: true}
	if err := r.add(condition); err != nil {
		return ChangedToken{}, err
	}
	isComplete := func(a *changed) bool {
		return a.Token != "" && a.Version != 0 && a.Scopes != nil && a.IsRotating != nil
	}
	answer, err := lookup(ctx, c, r, where, nil, isComplete)
	if err != nil {
		return ChangedToken{}, err
	}
	return ChangedToken{answer.Token, answer.Version, answer.Scopes, *answer.IsRotating, answer.Secret}, nil
}

package lisarelay

import (
	"context"
	"net/http"
)

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

// PutToken creates a token, or replaces its permissions. Its fields are those of "PUT /v1/tokens/{token}". The manager generates the
// Secret of a new token, unless there is a "sha256", and only this call returns it. A failed call is not repeated, because a repeat would
// not return the secret: rotate the token then. The manager answers it, and it needs the scope "tokens". The error is a [Problem] with
// the code "declared_in_file" if the configuration of the manager declares the token.
func (c *Client) PutToken(ctx context.Context, token string, definition map[string]any) (ChangedToken, error) {
	b := newBody()
	for name, value := range definition {
		b.fields[name] = value
	}
	return c.changeToken(ctx, http.MethodPut, []string{"tokens", token}, b)
}

// RotateToken replaces the secret of a token, one step at a time. A failed call is not repeated. If the new secret is lost, cancel and
// begin again. The manager answers it. The error is a [Problem] with the code "busy" if a rotation has begun already, with
// "declared_in_file" if the configuration of the manager declares the token, and with "not_found" if there is none.
func (c *Client) RotateToken(ctx context.Context, token string, step RotationStep) (ChangedToken, error) {
	b := newBody()
	b.fields["step"] = string(step)
	return c.changeToken(ctx, http.MethodPost, []string{"tokens", token, "rotate"}, b)
}

// RemoveToken removes a token: no process accepts it a few seconds later. The manager answers it. The error is a [Problem] with the code
// "declared_in_file" if the configuration of the manager declares the token, and with "not_found" if there is none, also if an earlier
// try without an answer has removed it.
func (c *Client) RemoveToken(ctx context.Context, token string) error {
	where, err := path("tokens", token)
	if err != nil {
		return err
	}
	r := request{method: http.MethodDelete, path: where, to: toManager, noContent: true}
	return c.call(ctx, r, func([]byte) error { return nil })
}

func (c *Client) changeToken(ctx context.Context, method string, where []string, b *body) (ChangedToken, error) {
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
	isComplete := func(a *changed) bool {
		return a.Token != "" && a.Version != 0 && a.Scopes != nil && a.IsRotating != nil
	}
	answer, err := lookup(ctx, c, r, where, nil, isComplete)
	if err != nil {
		return ChangedToken{}, err
	}
	return ChangedToken{answer.Token, answer.Version, answer.Scopes, *answer.IsRotating, answer.Secret}, nil
}

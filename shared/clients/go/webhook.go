package lisarelay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const maxAge = 5 * time.Minute

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_:-]{1,64}$`)

// ErrInvalidSignature means that a request was not sent by Lisa with one of the secrets, or that it is too old.
var ErrInvalidSignature = errors.New("lisarelay: invalid signature")

// VerifyWebhook verifies the signature of a webhook (Standard Webhooks 1.0.0) over its raw body, and returns the id of the message.
// While secrets are rotated, pass all of them. The signature covers the id, the time of the attempt and the body, but no other
// header.
//
// It returns an error that is [ErrInvalidSignature] if no signature matches, or if the request is more than 5 minutes old or early,
// and an [*ArgumentError] for an invalid secret, or for none.
func VerifyWebhook(header http.Header, body []byte, secrets ...string) (id string, err error) {
	if len(secrets) == 0 {
		return "", wrong("secrets: there are none")
	}
	keys := make([][]byte, len(secrets))
	for n, secret := range secrets {
		if keys[n], err = keyOf(secret); err != nil {
			return "", err
		}
	}
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	// A dot in the id could hide the time of an old request, whose body begins with the current time.
	if !idPattern.MatchString(id) {
		return "", fmt.Errorf("%w: webhook-id is missing, or not a message id", ErrInvalidSignature)
	}
	if !isRecent(timestamp) {
		return "", fmt.Errorf("%w: webhook-timestamp is missing, too old or too new", ErrInvalidSignature)
	}
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.", id, timestamp)
		mac.Write(body)
		expected := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, signature := range strings.Split(header.Get("webhook-signature"), " ") {
			if hmac.Equal([]byte(signature), []byte(expected)) {
				return id, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no signature matches", ErrInvalidSignature)
}

func isRecent(timestamp string) bool {
	seconds, err := strconv.ParseUint(timestamp, 10, 40)
	age := time.Since(time.Unix(int64(seconds), 0))
	return err == nil && age <= maxAge && age >= -maxAge
}

func keyOf(secret string) ([]byte, error) {
	text := strings.TrimSpace(secret)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
	if !strings.HasPrefix(text, "whsec_") || err != nil || len(key) == 0 {
		return nil, wrong("secret: must be whsec_ followed by base64")
	}
	return key, nil
}

package lisarelay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func signed(id, timestamp, body string) http.Header {
	key, _ := keyOf(secret)
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	header := http.Header{}
	header.Set("webhook-id", id)
	header.Set("webhook-timestamp", timestamp)
	header.Set("webhook-signature", "v1a,x v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return header
}

func now(offset time.Duration) string { return fmt.Sprint(time.Now().Add(offset).Unix()) }

func TestASignatureIsVerified(t *testing.T) {
	header := signed("order-7", now(0), "body")
	other := "whsec_" + base64.StdEncoding.EncodeToString([]byte("another key"))
	if id, err := VerifyWebhook(header, []byte("body"), other, secret+"\n"); id != "order-7" || err != nil {
		t.Error(id, err)
	}
	if _, err := VerifyWebhook(header, []byte("body"), other); !errors.Is(err, ErrInvalidSignature) {
		t.Error(err)
	}
	if _, err := VerifyWebhook(header, []byte("changed"), secret); !errors.Is(err, ErrInvalidSignature) {
		t.Error(err)
	}
	if _, err := VerifyWebhook(http.Header{}, []byte("body"), secret); !errors.Is(err, ErrInvalidSignature) {
		t.Error(err)
	}
}

// Each of these has a signature that matches.
func TestHostileHeadersAreRefused(t *testing.T) {
	times := []string{"", "0", now(-6 * time.Minute), now(6 * time.Minute), "-" + now(0), "+" + now(0), " " + now(0), now(0) + ".5",
		"1e9", "NaN", "9223372036854775807", "-9223372036854775808", strings.Repeat("9", 400), "١٧٠٠٠٠٠٠٠٠"}
	for _, timestamp := range times {
		if _, err := VerifyWebhook(signed("id", timestamp, "body"), []byte("body"), secret); !errors.Is(err, ErrInvalidSignature) {
			t.Errorf("%q: %v", timestamp, err)
		}
	}
	for _, id := range []string{"", "."} {
		if _, err := VerifyWebhook(signed(id, now(0), "body"), []byte("body"), secret); !errors.Is(err, ErrInvalidSignature) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestAnOldRequestCannotGetANewTimeFromItsBody(t *testing.T) {
	header := signed("id", now(-time.Hour), now(0)+".rest")
	header.Set("webhook-id", "id."+header.Get("webhook-timestamp"))
	header.Set("webhook-timestamp", now(0))
	if _, err := VerifyWebhook(header, []byte("rest"), secret); !errors.Is(err, ErrInvalidSignature) {
		t.Error(err)
	}
}

func TestAWrongSecretIsAWrongArgument(t *testing.T) {
	var none *ArgumentError
	if _, err := VerifyWebhook(signed("id", now(0), ""), nil); !errors.As(err, &none) {
		t.Error(err)
	}
	for _, wrong := range []string{"", "whsec_", "whsec_???", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		var argument *ArgumentError
		if _, err := VerifyWebhook(signed("id", now(0), ""), nil, wrong); !errors.As(err, &argument) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

package lockkeeper

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// answerMax bounds an answer, in bytes. The longest, with 1,024 grants of 64 permits each, has some 3 MiB.
const answerMax = 8 << 20

// nodes sends calls to one node, and goes on to the next one when it does not answer.
type nodes struct {
	bases   []string
	current atomic.Uint32
	http    *http.Client
	token   string
}

// call is one call of the HTTP interface. All of them may be repeated.
type call struct {
	method, path, secret string
	body                 any
	// within bounds one attempt.
	within time.Duration
}

// answer is a decoded body. isWhole reports that the fields that the service sends are there: anything else, such as a page
// of a proxy, renews no lease.
type answer interface{ isWhole() bool }

// outcome is that of one attempt.
type outcome int

const (
	final   outcome = iota // the service's answer
	mayPass                // no answer, or one that says that the same call may succeed later or at another node
	refused                // a refusal that may be this node's alone: its access file, its certificate, a proxy in front of it
)

func newNodes(addresses string, options Options) (*nodes, error) {
	client := *options.HTTP
	// A redirect would send the session's secret to another host.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	n := &nodes{http: &client, token: options.Token}
	scheme := ""
	for _, address := range strings.Split(addresses, ",") {
		address = strings.TrimSpace(address)
		if scheme != "" && !strings.Contains(address, "://") {
			address = scheme + "://" + address
		}
		base, err := url.Parse(address)
		if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
			return nil, fmt.Errorf("%q is no address of a node; one is like http://10.0.0.1:5627", address)
		}
		scheme = base.Scheme
		n.bases = append(n.bases, strings.TrimSuffix(base.String(), "/"))
	}
	return n, nil
}

// ask repeats a call until it is answered, here or at another node, and returns when the answered attempt was sent: the
// lease counts from then (P5). It gives up when ctx is cancelled (its error), at the deadline of ctx (ErrUnreachable),
// when over is closed (ErrLost), and after as many refusals as there are nodes (the last one).
func (n *nodes) ask(ctx context.Context, over <-chan struct{}, c call, a answer) (time.Duration, error) {
	for failed, refusals := 0, 0; ; failed++ {
		sent, outcome, err := n.once(ctx, c, a)
		if outcome == refused {
			refusals++
		}
		if outcome == final || refusals == len(n.bases) {
			return sent, err
		}
		pause := time.NewTimer(backoff(failed / len(n.bases)))
		select {
		case <-pause.C:
		case <-over:
			pause.Stop()
			return sent, ErrLost
		case <-ctx.Done():
			pause.Stop()
			return sent, unreachable(ctx, err)
		}
	}
}

func unreachable(ctx context.Context, last error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fmt.Errorf("%w in time; the last attempt: %v", ErrUnreachable, last)
}

// backoff is the pause after so many rounds through all nodes: about 10 ms, then twice as long each time, at most 1 s.
func backoff(rounds int) time.Duration {
	most := time.Second
	if rounds < 7 {
		most = 10 * time.Millisecond << rounds
	}
	return most/2 + time.Duration(rand.Int63n(int64(most/2)))
}

// once sends a call to the present node, and selects the next one if the call may pass there.
func (n *nodes) once(ctx context.Context, c call, a answer) (sent time.Duration, result outcome, err error) {
	node := n.current.Load()
	sent = now()
	err = n.send(ctx, n.bases[node], c, a)
	var problem *Problem
	switch {
	case err == nil:
		return sent, final, nil
	case errors.As(err, &problem):
		result = problem.outcome()
	case errors.Is(err, ErrUnreachable):
		result = refused
	case isOfTLS(err):
		result, err = refused, fmt.Errorf("%w: %v", ErrUnreachable, err)
	default:
		result = mayPass
	}
	if result != final && !errors.Is(ctx.Err(), context.Canceled) {
		// Another call may have selected the next node already.
		n.current.CompareAndSwap(node, (node+1)%uint32(len(n.bases)))
	}
	return sent, result, err
}

// isOfTLS reports that the TLS handshake was refused, on this side or the other: it is until somebody changes a certificate.
func isOfTLS(err error) bool {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		plain     tls.RecordHeaderError
		alert     *net.OpError
	)
	return errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &plain) ||
		(errors.As(err, &alert) && alert.Op == "remote error")
}

func (n *nodes) send(ctx context.Context, base string, c call, a answer) error {
	ctx, cancel := context.WithTimeout(ctx, c.within)
	defer cancel()
	var body []byte
	if c.body != nil {
		var err error
		if body, err = json.Marshal(c.body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, c.method, base+c.path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header["Lockkeeper-Secret"] = []string{c.secret}
	if len(body) > 0 {
		request.Header["Content-Type"] = []string{"application/json"}
	}
	if n.token != "" {
		request.Header["Authorization"] = []string{"Bearer " + n.token}
	}
	response, err := n.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err != nil {
		return err
	}
	problem := new(Problem)
	switch status := response.StatusCode; {
	case status >= 400 && json.Unmarshal(text, problem) == nil && problem.Code != "":
		problem.Status = status
		return problem
	case a == nil && status == http.StatusNoContent:
		return nil
	case a != nil && (status == http.StatusOK || status == http.StatusAccepted) && json.Unmarshal(text, a) == nil && a.isWhole():
		return nil
	case status >= 502 && status <= 504:
		return fmt.Errorf("%s: status %d, of a proxy", base, status)
	default:
		return fmt.Errorf("%w: %s answered with status %d and what is no answer of the service", ErrUnreachable, base, status)
	}
}

package lockkeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
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

func newNodes(addresses string, options Options) (*nodes, error) {
	n := &nodes{http: options.HTTP, token: options.Token}
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
// lease counts from then (P5). It gives up when ctx is cancelled (its error), at the deadline of ctx (ErrUnreachable), and
// when over is closed (ErrLost).
func (n *nodes) ask(ctx context.Context, over <-chan struct{}, c call, answer any) (time.Duration, error) {
	for failed := 0; ; failed++ {
		sent, mayPass, err := n.once(ctx, c, answer)
		if err == nil || !mayPass {
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
			return sent, unanswered(ctx, err)
		}
	}
}

func unanswered(ctx context.Context, last error) error {
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
func (n *nodes) once(ctx context.Context, c call, answer any) (sent time.Duration, mayPass bool, err error) {
	node := n.current.Load()
	sent = now()
	err = n.send(ctx, n.bases[node], c, answer)
	if err == nil {
		return sent, false, nil
	}
	var problem *Problem
	mayPass = !errors.As(err, &problem) || problem.mayPass()
	if mayPass && !errors.Is(ctx.Err(), context.Canceled) {
		// Others may have gone on already.
		n.current.CompareAndSwap(node, (node+1)%uint32(len(n.bases)))
	}
	return sent, mayPass, err
}

func (n *nodes) send(ctx context.Context, base string, c call, answer any) error {
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
	if response.StatusCode >= 400 {
		problem := &Problem{Status: response.StatusCode, Code: "internal", Detail: http.StatusText(response.StatusCode)}
		// What is no problem document comes from a proxy.
		_ = json.Unmarshal(text, problem)
		return problem
	}
	if answer == nil || len(text) == 0 {
		return nil
	}
	return json.Unmarshal(text, answer)
}

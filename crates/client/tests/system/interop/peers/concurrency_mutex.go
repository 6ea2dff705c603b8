// Runs the locks of etcd's own Go client, concurrency.Mutex, for the tests: reads one command per line. Used as
// `concurrency_mutex PORT`, compiled.
//
//	try NAME TTL_MS       -> held VALUE | busy
//	acquire NAME TTL_MS   -> held VALUE if the lock is free; otherwise waiting, and later held VALUE
//	extend NAME TTL_MS    -> held | lost
//	release NAME          -> released | lost
//	token NAME            -> the create revision of the client's key for the lock
//
// Each lock has a session of its own, which renews its lease by itself; VALUE names the lease. The program prints `ready`
// once the server has answered. It ends at the end of its input without releasing anything, and with a panic at any
// error.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
	"go.etcd.io/etcd/etcdserver/etcdserverpb"
)

const looksEvery = 20 * time.Millisecond

var background = context.Background()

type hold struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:" + os.Args[1]}})
	check(err)
	_, err = client.Get(background, "ready")
	check(err)
	fmt.Println("ready")
	held := map[string]hold{}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		name := words[1]
		switch words[0] {
		case "try", "acquire":
			if lock, got := acquire(client, name, words[2], words[0] == "acquire"); got {
				held[name] = lock
				fmt.Printf("held lease %x\n", lock.session.Lease())
			} else {
				fmt.Println("busy")
			}
		case "extend":
			say(held[name].exists(), "held")
		case "release":
			lock := held[name]
			delete(held, name)
			there := lock.exists()
			check(lock.mutex.Unlock(background))
			// Fails if the lease has expired.
			_ = lock.session.Close()
			say(there, "released")
		case "token":
			// Not the revision of Header(): that of a client that has waited can be one that another has, too.
			isOwner := held[name].mutex.IsOwner()
			fmt.Println((*etcdserverpb.Compare)(&isOwner).GetCreateRevision())
		default:
			panic("unknown command: " + commands.Text())
		}
	}
	check(commands.Err())
}

// This version has no TryLock: its Lock runs until it has got the lock, or is seen to wait behind another key.
func acquire(client *clientv3.Client, name, ttlMs string, waits bool) (hold, bool) {
	ttl, err := strconv.Atoi(ttlMs)
	check(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL((ttl+999)/1000))
	check(err)
	lock := hold{session, concurrency.NewMutex(session, name)}
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- lock.mutex.Lock(ctx) }()
	for {
		select {
		case err := <-done:
			check(err)
			return lock, true
		case <-time.After(looksEvery):
		}
		if isBehind(session, name) {
			break
		}
	}
	if waits {
		fmt.Println("waiting")
		check(<-done)
		return lock, true
	}
	cancel()
	if <-done == nil {
		return lock, true
	}
	// Also deletes the key, if Lock was cancelled before it had read that there is one.
	check(session.Close())
	return hold{}, false
}

// Whether the session's key for the lock is in the queue, and not the first.
func isBehind(session *concurrency.Session, name string) bool {
	oldestFirst := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
	queue, err := session.Client().Get(background, name+"/", clientv3.WithPrefix(), oldestFirst)
	check(err)
	for place, key := range queue.Kvs {
		if key.Lease == int64(session.Lease()) {
			return place > 0
		}
	}
	return false
}

func (lock hold) exists() bool {
	found, err := lock.session.Client().Txn(background).If(lock.mutex.IsOwner()).Commit()
	check(err)
	return found.Succeeded
}

func say(yes bool, answer string) {
	if !yes {
		answer = "lost"
	}
	fmt.Println(answer)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

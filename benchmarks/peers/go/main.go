// The Go client rocketmq-client-go v2, one measured run. Modes: sync-N (N goroutines), async-N (one goroutine, N under way,
// callbacks), batch-N (N goroutines, 32 messages a call).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	batch   = 32
	sampled = 8
	ticks   = 100.0
)

type specification struct {
	Side        string  `json:"side"`
	Mode        string  `json:"mode"`
	Namesrv     string  `json:"namesrv"`
	Topic       string  `json:"topic"`
	Body        int     `json:"body"`
	Seconds     float64 `json:"seconds"`
	WarmUp      float64 `json:"warm_up"`
	MaxMessages int64   `json:"max_messages"`
	BrokerPid   *int    `json:"broker_pid"`
}

type mark struct {
	messages         int64
	at               time.Time
	cpu, broker, rss float64
}

type peer struct {
	spec      specification
	body      []byte
	producer  rocketmq.Producer
	count     atomic.Int64
	stop      atomic.Bool
	recording atomic.Bool
	lock      sync.Mutex
	latencies []time.Duration
	failures  map[string]int64
}

func main() {
	rlog.SetLogLevel("fatal")
	p := &peer{failures: map[string]int64{}}
	must(json.Unmarshal([]byte(os.Args[1]), &p.spec))
	p.body = []byte(strings.Repeat("x", p.spec.Body))
	kind, number, _ := strings.Cut(p.spec.Mode, "-")
	depth, err := strconv.Atoi(number)
	must(err)
	p.producer, err = rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{p.spec.Namesrv})),
		producer.WithGroupName("benchmark"),
		producer.WithSendMsgTimeout(3*time.Second),
		producer.WithRetry(2),
	)
	must(err)
	must(p.producer.Start())
	var workers sync.WaitGroup
	start := func(job func()) {
		workers.Add(1)
		go func() { defer workers.Done(); job() }()
	}
	if kind == "async" {
		start(func() { p.callbacks(depth) })
	} else {
		size := map[string]int{"sync": 1, "batch": batch}[kind]
		for i := 0; i < depth; i++ {
			timed := depth < 64 || i%sampled == 0
			start(func() { p.waiting(size, timed) })
		}
	}
	p.until(p.spec.WarmUp, p.spec.MaxMessages/5)
	p.recording.Store(true)
	first := p.mark()
	fmt.Println("edge start")
	p.until(p.spec.Seconds, first.messages+p.spec.MaxMessages*4/5)
	last := p.mark()
	p.recording.Store(false)
	fmt.Println("edge end")
	time.Sleep(100 * time.Millisecond)
	p.stop.Store(true)
	workers.Wait()
	text, err := json.Marshal(p.result(first, last))
	must(err)
	fmt.Println(string(text))
	_ = p.producer.Shutdown()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (p *peer) waiting(size int, timed bool) {
	for !p.stop.Load() {
		begun := time.Now()
		messages := make([]*primitive.Message, size)
		for i := range messages {
			messages[i] = primitive.NewMessage(p.spec.Topic, p.body)
		}
		result, err := p.producer.SendSync(context.Background(), messages...)
		if p.accepted(result, err, int64(size)) && timed {
			p.taken(begun)
		}
	}
}

func (p *peer) callbacks(depth int) {
	room := make(chan struct{}, depth)
	for number := 0; !p.stop.Load(); number++ {
		room <- struct{}{}
		timed := depth < 64 || number%sampled == 0
		begun := time.Now()
		err := p.producer.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if p.accepted(result, err, 1) && timed {
				p.taken(begun)
			}
			<-room
		}, primitive.NewMessage(p.spec.Topic, p.body))
		if err != nil {
			p.accepted(nil, err, 1)
			<-room
		}
	}
	deadline := time.After(10 * time.Second)
	for i := 0; i < depth; i++ {
		select {
		case room <- struct{}{}:
		case <-deadline:
			p.accepted(nil, fmt.Errorf("no callback within 10 s"), int64(depth-i))
			return
		}
	}
}

func (p *peer) accepted(result *primitive.SendResult, err error, messages int64) bool {
	if err == nil && result.Status == primitive.SendOK {
		p.count.Add(messages)
		return true
	}
	if err == nil {
		err = fmt.Errorf("status %d", result.Status)
	}
	name := err.Error()
	if len(name) > 80 {
		name = name[:80]
	}
	p.lock.Lock()
	p.failures[name] += messages
	p.lock.Unlock()
	time.Sleep(10 * time.Millisecond)
	return false
}

func (p *peer) taken(begun time.Time) {
	if p.recording.Load() {
		took := time.Since(begun)
		p.lock.Lock()
		p.latencies = append(p.latencies, took)
		p.lock.Unlock()
	}
}

func (p *peer) until(seconds float64, messages int64) {
	deadline := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for p.count.Load() < messages && time.Now().Before(deadline) {
		time.Sleep(min(20*time.Millisecond, time.Until(deadline)))
	}
}

func (p *peer) mark() mark {
	found := mark{messages: p.count.Load(), at: time.Now(), cpu: cpuSeconds("self"), rss: peakMegabytes()}
	if p.spec.BrokerPid != nil {
		found.broker = cpuSeconds(strconv.Itoa(*p.spec.BrokerPid))
	}
	return found
}

func (p *peer) result(first, last mark) map[string]any {
	messages, seconds := last.messages-first.messages, last.at.Sub(first.at).Seconds()
	per := 1e6 / float64(max(messages, 1))
	p.lock.Lock()
	defer p.lock.Unlock()
	sort.Slice(p.latencies, func(a, b int) bool { return p.latencies[a] < p.latencies[b] })
	quantile := func(share float64) any {
		if len(p.latencies) == 0 {
			return nil
		}
		place := min(len(p.latencies)-1, int(float64(len(p.latencies))*share))
		return float64(p.latencies[place].Nanoseconds()) / 1e3
	}
	var broker any
	if p.spec.BrokerPid != nil {
		broker = (last.broker - first.broker) * per
	}
	return map[string]any{
		"side": p.spec.Side, "mode": p.spec.Mode, "messages": messages, "seconds": seconds,
		"rate": float64(messages) / seconds, "client_us": (last.cpu - first.cpu) * per, "broker_us": broker,
		"p50_us": quantile(0.5), "p99_us": quantile(0.99), "p999_us": quantile(0.999), "max_us": quantile(1),
		"rss_mb": last.rss, "total": p.count.Load(), "failures": p.failures,
	}
}

func cpuSeconds(process string) float64 {
	text, err := os.ReadFile("/proc/" + process + "/stat")
	must(err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks
}

func peakMegabytes() float64 {
	text, err := os.ReadFile("/proc/self/status")
	must(err)
	for _, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "VmHWM") {
			kilobytes, _ := strconv.ParseFloat(strings.Fields(line)[1], 64)
			return kilobytes / 1024
		}
	}
	return 0
}

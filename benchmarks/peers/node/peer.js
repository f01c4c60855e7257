'use strict';

// The Node client ali-ons, one measured run. Modes: await-N (N loops that await each send).

const fs = require('fs');
const httpclient = require('urllib');
const { Producer, Message } = require('ali-ons');

const SAMPLED = 8;
const TICKS = 100;
const POLL = 20;

const spec = JSON.parse(process.argv[2]);
const depth = Number(spec.mode.split('-')[1]);
const body = Buffer.alloc(spec.body, 'x');
const latencies = [];
const failures = {};
let count = 0;
let stop = false;
let recording = false;

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

function failed(text) {
  const name = text.split('\n')[0].slice(0, 80);
  failures[name] = (failures[name] || 0) + 1;
  return pause(10);
}

async function worker(producer, timed) {
  while (!stop) {
    const begun = process.hrtime.bigint();
    try {
      const result = await producer.send(new Message(spec.topic, body));
      if (result.sendStatus === 'SEND_OK') {
        count++;
        if (timed && recording) latencies.push(Number(process.hrtime.bigint() - begun) / 1e3);
      } else {
        await failed(String(result.sendStatus));
      }
    } catch (error) {
      await failed(`${error.name}: ${error.message}`);
    }
  }
}

async function until(seconds, messages) {
  const deadline = Date.now() + seconds * 1000;
  for (let left = seconds * 1000; count < messages && left > 0; left = deadline - Date.now()) await pause(Math.min(POLL, left));
}

function cpuSeconds(process) {
  const text = fs.readFileSync(`/proc/${process}/stat`, 'utf8');
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

function mark() {
  return {
    messages: count,
    time: process.hrtime.bigint(),
    cpu: cpuSeconds('self'),
    broker: spec.broker_pid ? cpuSeconds(spec.broker_pid) : null,
    rss: Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync('/proc/self/status', 'utf8'))[1]) / 1024,
  };
}

function result(first, last) {
  const messages = last.messages - first.messages;
  const seconds = Number(last.time - first.time) / 1e9;
  const per = 1e6 / Math.max(messages, 1);
  latencies.sort((a, b) => a - b);
  const quantile = share => (latencies.length ? latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * share))] : null);
  return {
    side: spec.side,
    mode: spec.mode,
    messages,
    seconds,
    rate: messages / seconds,
    client_us: (last.cpu - first.cpu) * per,
    broker_us: spec.broker_pid ? (last.broker - first.broker) * per : null,
    p50_us: quantile(0.5),
    p99_us: quantile(0.99),
    p999_us: quantile(0.999),
    max_us: quantile(1),
    rss_mb: last.rss,
    total: count,
    failures,
  };
}

async function main() {
  const quiet = { info() {}, warn() {}, error() {}, debug() {} };
  const producer = new Producer({
    httpclient,
    nameSrv: spec.namesrv,
    producerGroup: 'benchmark',
    sendMsgTimeout: 3000,
    logger: quiet,
  });
  producer.on('error', () => {});
  await producer.ready();
  const workers = [];
  for (let number = 0; number < depth; number++) workers.push(worker(producer, depth < 64 || number % SAMPLED === 0));
  await until(spec.warm_up, spec.max_messages / 5);
  recording = true;
  const first = mark();
  fs.writeSync(1, 'edge start\n');
  await until(spec.seconds, first.messages + (spec.max_messages * 4) / 5);
  const last = mark();
  recording = false;
  fs.writeSync(1, 'edge end\n');
  await pause(100);
  stop = true;
  await Promise.all(workers);
  fs.writeSync(1, JSON.stringify(result(first, last)) + '\n');
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});

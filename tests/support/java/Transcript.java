import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The lines of one case, in the order in which they were written. A line holds nothing that differs from run to run: ids, addresses
 * and times are replaced by what they are.
 */
final class Transcript {
    private static final long PATIENCE_MS = 60_000;
    private static final Set<String> IDS = Set.of("UNIQ_KEY", "POP_CK", "ORIGIN_MESSAGE_ID", "CORRELATION_ID", "DLQ_ORIGIN_MESSAGE_ID", "__transactionId__");
    private static final Set<String> TIMES =
        Set.of("1ST_POP_TIME", "CONSUME_START_TIME", "ARRIVE_TIME", "PUSH_REPLY_TIME", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DELIVER_MS");

    private final String name;
    private final World world;
    private final List<String> lines = new ArrayList<>();
    private volatile String waitingFor = "nothing";

    Transcript(String name, World world) {
        this.name = name;
        this.world = world;
    }

    synchronized void line(String format, Object... values) {
        lines.add(name + ": " + (values.length == 0 ? format : String.format(format, values)));
    }

    synchronized List<String> lines() {
        return new ArrayList<>(lines);
    }

    String waitingFor() {
        return waitingFor;
    }

    /** Polls until it is so. What throws counts as not yet; the last error is part of the failure when patience ends. */
    void await(String what, Callable<Boolean> condition) throws Exception {
        waitingFor = what;
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
        Exception last = null;
        while (System.nanoTime() < deadline) {
            try {
                if (condition.call()) {
                    waitingFor = "nothing";
                    return;
                }
            } catch (InterruptedException stopped) {
                throw stopped;
            } catch (Exception error) {
                last = error;
            }
            Thread.sleep(25);
        }
        throw new IllegalStateException("waited in vain: " + what + (last == null ? "" : ", last error " + error(last)));
    }

    /** Writes how the call fails, or what it returned against expectation. */
    void fails(String what, Callable<Object> call) {
        try {
            line("%s returned %s", what, call.call());
        } catch (Exception error) {
            line("%s failed: %s", what, error(error));
        }
    }

    /** Class, code and first line of the innermost error that has a code. */
    String error(Throwable error) {
        String found = null;
        for (Throwable each = error; each != null; each = each.getCause() == each ? null : each.getCause()) {
            if (each instanceof MQBrokerException) {
                MQBrokerException broker = (MQBrokerException) each;
                return String.format("MQBrokerException %d %s", broker.getResponseCode(), firstLine(broker.getErrorMessage()));
            }
            if (each instanceof MQClientException) {
                MQClientException client = (MQClientException) each;
                found = String.format("%s %d %s", each.getClass().getSimpleName(), client.getResponseCode(), firstLine(client.getErrorMessage()));
            } else if (found == null) {
                found = each.getClass().getSimpleName() + " " + firstLine(each.getMessage());
            }
        }
        return found;
    }

    String firstLine(String text) {
        return text == null ? "null" : normal(text.strip().split("\n")[0].strip());
    }

    String normal(String text) {
        return text.replace(world.brokerAddress, "BROKER")
            .replace(world.nameServer, "NAMESERVER")
            .replaceAll("[0-9.]+@[0-9]+#[0-9]+", "CLIENT")
            .replaceAll("[0-9]{1,3}(\\.[0-9]{1,3}){3}:[0-9]+", "ADDRESS")
            .replaceAll("\\b([0-9A-F]{32}|[0-9A-F]{56})\\b", "ID")
            .replaceAll("^java\\.lang\\.\\w+: (.*), org\\.apache\\.[\\w.$]+\\(\\w+\\.java:\\d+\\)$", "$1")
            .replaceAll("\\b[0-9]{13}\\b", "TIME");
    }

    static String result(SendResult sent) {
        boolean batch = sent.getMsgId().indexOf(',') >= 0;
        return String.format(
            "%s queue=%d offset=%d msgId=%s offsetMsgId=%s transactionId=%s region=%s trace=%s recallHandle=%s",
            sent.getSendStatus(), sent.getMessageQueue().getQueueId(), sent.getQueueOffset(), ids(sent.getMsgId()), ids(sent.getOffsetMsgId()),
            sent.getTransactionId() == null ? "null" : sent.getTransactionId().equals(sent.getMsgId()) && !batch ? "msgId" : "other",
            sent.getRegionId(), sent.isTraceOn(), sent.getRecallHandle() == null ? "no" : "yes");
    }

    /** How many ids there are and how long the first is: "1x32". */
    private static String ids(String text) {
        return text == null ? "null" : text.split(",").length + "x" + text.split(",")[0].length();
    }

    /** A message as read from its queue: where it lies and all it holds. */
    String stored(MessageExt message) {
        return String.format(
            "queue=%d offset=%d size=%d sysFlag=%d born=%s stored=%s %s", message.getQueueId(), message.getQueueOffset(),
            message.getStoreSize(), message.getSysFlag(), host(message.getBornHost()), host(message.getStoreHost()), content(message));
    }

    /** What a listener sees of a message, without its place: retried and delayed ones are stored again elsewhere. */
    String content(MessageExt message) {
        String unique = message.getProperty("UNIQ_KEY");
        return String.format(
            "topic=%s broker=%s body=%s tags=%s keys=%s flag=%d reconsumed=%d msgId=%s %s", message.getTopic(), message.getBrokerName(), body(message.getBody()),
            message.getTags(), message.getKeys(), message.getFlag(), message.getReconsumeTimes(),
            message.getMsgId() == null ? "null" : message.getMsgId().equals(unique) ? "UNIQ_KEY" : ids(message.getMsgId()),
            properties(message.getProperties()));
    }

    String properties(Map<String, String> properties) {
        Map<String, String> sorted = new TreeMap<>(properties);
        sorted.remove("MIN_OFFSET");
        sorted.remove("MAX_OFFSET");
        sorted.replaceAll((key, value) -> IDS.contains(key) ? "ID" : TIMES.contains(key) ? "TIME" : normal(value));
        return sorted.toString();
    }

    private String host(java.net.SocketAddress address) {
        java.net.InetSocketAddress ip = (java.net.InetSocketAddress) address;
        String text = ip.getAddress().getHostAddress() + ":" + ip.getPort();
        return text.equals(world.brokerAddress) ? "BROKER" : ip.getAddress().getHostAddress();
    }

    static String body(byte[] body) {
        if (body == null) {
            return "null";
        }
        if (body.length <= 40) {
            return new String(body, StandardCharsets.UTF_8);
        }
        CRC32 sum = new CRC32();
        sum.update(body);
        return String.format("%dbytes#%08x", body.length, sum.getValue());
    }

    static List<String> sorted(Collection<String> texts) {
        List<String> list = new ArrayList<>(texts);
        list.sort(null);
        return list;
    }
}

import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;

/** Counts what a consumer that pops asks of the broker, and what the broker has taken as done. */
final class Popping implements RPCHook {
    private static final long TIMEOUT = 10_000;

    private final LongAdder pops = new LongAdder();
    private final LongAdder acknowledged = new LongAdder();
    private final LongAdder refused = new LongAdder();

    /** Sets the mode of a group at each broker of a topic, as an operator does by {@code mqadmin setConsumeMode}. */
    static void setMode(String nameServer, String topic, String group) throws Exception {
        DefaultMQProducer operator = new DefaultMQProducer("benchmark-consume-mode");
        operator.setInstanceName("operator-" + System.nanoTime());
        operator.setNamesrvAddr(nameServer);
        operator.start();
        MQClientInstance client = operator.getDefaultMQProducerImpl().getMqClientFactory();
        for (BrokerData broker : client.getMQClientAPIImpl().getTopicRouteInfoFromNameServer(topic, TIMEOUT).getBrokerDatas()) {
            client.getMQClientAPIImpl().setMessageRequestMode(
                broker.selectBrokerAddr(), topic, group, MessageRequestMode.POP, 0, TIMEOUT);
        }
        operator.shutdown();
    }

    @Override
    public void doBeforeRequest(String address, RemotingCommand request) {
        if (request.getCode() == RequestCode.POP_MESSAGE) {
            pops.increment();
        }
    }

    @Override
    public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
        if (request.getCode() == RequestCode.ACK_MESSAGE) {
            (response != null && response.getCode() == ResponseCode.SUCCESS ? acknowledged : refused).increment();
        }
    }

    /** Waits until the broker has taken so many messages as done: none is left invisible then. */
    void awaitAcknowledged(long messages, long seconds) throws InterruptedException {
        long deadline = System.nanoTime() + seconds * 1_000_000_000;
        while (acknowledged.sum() < messages) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(this + ", not " + messages + "; did the broker take the mode POP?");
            }
            Thread.sleep(1);
        }
    }

    /** Returns the number of messages that the broker has taken as done. */
    long acknowledged() {
        return acknowledged.sum();
    }

    @Override
    public String toString() {
        return pops.sum() + " pops, " + acknowledged.sum() + " messages acknowledged, " + refused.sum() + " refused";
    }
}

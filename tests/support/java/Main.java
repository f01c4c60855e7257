import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Runs cases of the official client against one broker, all at once, and prints what each observed.
 *
 * <pre>java Main NAMESERVER BROKER SECONDS [CASE...]</pre>
 *
 * Waiting is most of a case, so they share the JVM and its time. The transcript goes to standard output case by case; everything
 * libraries print goes to standard error. "CASE: ! text" says that a case did not come to its end. After the last case standard
 * output ends, and with standard input the program.
 */
final class Main {
    interface Case {
        void run(World world, Transcript out) throws Exception;
    }

    private static Map<String, Case> cases() {
        Map<String, Case> cases = new LinkedHashMap<>();
        SendCases.add(cases);
        DelayCases.add(cases);
        TransactionCases.add(cases);
        RequestCases.add(cases);
        PushCases.add(cases);
        RetryCases.add(cases);
        LitePullCases.add(cases);
        AdminCases.add(cases);
        GroupCases.add(cases);
        PopCases.add(cases);
        InteropCases.add(cases);
        return cases;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(arguments[2]));
        World world = new World(arguments[0], arguments[1]);
        List<Transcript> transcripts = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        Map<String, Case> cases = cases();
        if (arguments.length > 3) {
            cases.keySet().retainAll(List.of(arguments).subList(3, arguments.length));
        }
        for (Map.Entry<String, Case> each : cases.entrySet()) {
            String name = each.getKey();
            Case body = each.getValue();
            Transcript out = new Transcript(name, world);
            transcripts.add(out);
            Thread thread = new Thread(() -> run(world, body, out), name);
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        for (int i = 0; i < threads.size(); i++) {
            threads.get(i).join(Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime())));
            Transcript out = transcripts.get(i);
            if (threads.get(i).isAlive()) {
                out.line("! unfinished, waiting for %s", out.waitingFor());
            }
            out.lines().forEach(output::println);
        }
        output.close();
        while (System.in.read() >= 0) { // meanwhile the JVM may be asked for its classes
        }
        System.err.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run(World world, Case body, Transcript out) {
        long begun = System.nanoTime();
        try {
            body.run(world, out);
        } catch (Throwable error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                out.line("! %s", out.error(each));
            }
            error.printStackTrace();
        }
        System.err.printf("case %s took %d ms%n", Thread.currentThread().getName(), (System.nanoTime() - begun) / 1_000_000);
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * Evaluates SQL92 conditions as a broker does. Lines of input are words in base64: "P" and names and values of properties in turn,
 * or "E" and a condition. For each condition prints "invalid", or a letter for each map of properties: t(rue), f(alse), n(ull),
 * e(xception).
 */
public class Conditions {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        List<Map<String, String>> maps = new ArrayList<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("P")) {
                Map<String, String> map = new HashMap<>();
                for (int i = 1; i + 1 < words.length; i += 2) {
                    map.put(text(words[i]), text(words[i + 1]));
                }
                maps.add(map);
            } else {
                System.out.println(outcomes(text(words[1]), maps));
            }
        }
    }

    private static String outcomes(String condition, List<Map<String, String>> maps) {
        Expression expression;
        try {
            expression = SelectorParser.parse(condition);
        } catch (MQFilterException error) {
            return "invalid";
        }
        StringBuilder letters = new StringBuilder();
        for (Map<String, String> map : maps) {
            try {
                Object value = expression.evaluate(new MessageEvaluationContext(map));
                letters.append(value == null ? 'n' : value.equals(Boolean.TRUE) ? 't' : value.equals(Boolean.FALSE) ? 'f' : '?');
            } catch (Throwable error) {
                letters.append('e');
            }
        }
        return letters.toString();
    }

    private static String text(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }
}

import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the JUnit 4 tests of one class, and prints a line for each: RunTests CLASS FILE. */
public class RunTests {
    public static void main(String[] arguments) throws ClassNotFoundException {
        String file = arguments[1];
        JUnitCore core = new JUnitCore();
        core.addListener(
                new RunListener() {
                    private Failure failure;

                    @Override
                    public void testStarted(Description test) {
                        failure = null;
                    }

                    @Override
                    public void testFailure(Failure found) {
                        failure = found;
                    }

                    @Override
                    public void testFinished(Description test) {
                        String name = file + "::" + test.getMethodName();
                        String why = failure == null ? "" : " - " + failure.getException().getClass().getSimpleName();
                        System.out.println((failure == null ? "PASSED " : "FAILED ") + name + why);
                        System.out.flush();
                    }
                });
        boolean passed = core.run(Class.forName(arguments[0])).wasSuccessful();
        System.exit(passed ? 0 : 1); // a test that timed out has left its thread running
    }
}

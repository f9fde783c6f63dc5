# Compile an exercise and its JUnit 5 tests, and run them. Needs a JDK, and JUnit 5 and AssertJ in /usr/share/java.
jars=/usr/share/java/junit-platform-console-standalone.jar:/usr/share/java/assertj-core.jar
classes=$(mktemp -d)
# Else a JVM reserves more addresses for classes than a process of a local sandbox may have.
small="-Xms16m -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:CompressedClassSpaceSize=64m -XX:ReservedCodeCacheSize=32m"
# shellcheck disable=SC2046,SC2086 # they are flags, and files
javac $(printf ' -J%s' $small) -nowarn -d "$classes" -cp "$jars" $(find src -name '*.java') || exit 1
# shellcheck disable=SC2086
java $small -cp "$classes:$jars" org.junit.platform.console.ConsoleLauncher --disable-banner --scan-classpath "$classes"

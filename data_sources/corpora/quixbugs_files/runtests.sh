# Compile and run the tests of one program: bash runtests.sh GCD. Needs a JDK, and JUnit 4 in /usr/share/java.
jars=/usr/share/java/junit4.jar:/usr/share/java/hamcrest-core.jar
classes=$(mktemp -d)
small="-Xms16m -Xmx192m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=32m -XX:CompressedClassSpaceSize=64m"
javac $(printf ' -J%s' $small) -nowarn -Xlint:none -d "$classes" -cp "$jars" \
    java_programs/*.java java_testcases/junit/*.java RunTests.java || exit 1
java $small -cp "$classes:$jars" RunTests "java_testcases.junit.$1_TEST" "java_testcases/junit/$1_TEST.java"

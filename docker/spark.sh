#!/bin/bash
# Entry point of the Spark image. Spark on Kubernetes starts its pods with the argument `executor` or `driver` and passes the rest
# in variables. Any other command is run unchanged, so that a Job can call spark-submit.
set -euo pipefail

case "${1:-}" in
executor)
  options=()
  for name in $(compgen -v SPARK_JAVA_OPT_ | sort -t _ -k 4 -n); do options+=("${!name}"); done
  # Spark mounts the folder of settings; SPARK_CLASSPATH contains the additions of a job.
  exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
driver)
  shift
  exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
  ;;
*)
  exec "$@"
  ;;
esac

"""The Spark source of evenq: `spark.read.format("evenq")`. Import stays light: every Spark session imports this module."""

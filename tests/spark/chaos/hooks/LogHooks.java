// Ends the driver's JVM before or after an entry of one of Spark's logs gets its name. Compiled by the driver with the
// compiler that Spark brings; `sitecustomize.py` beside it says how points are armed. A point is called
// QUERY.offsets.before, QUERY.commits.after, TABLE._spark_metadata.before ..., by the folders of the log.

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

public class LogHooks extends FileContextBasedCheckpointFileManager {
    public LogHooks(Path path, Configuration configuration) {
        super(path, configuration);
    }

    public void renameTempFile(Path from, Path to, boolean overwrite) {
        Path log = to.getParent();
        boolean entry = Character.isDigit(to.getName().charAt(0));
        String point = log.getParent().getName() + "." + log.getName();
        if (entry) {
            reached(point + ".before");
        }
        super.renameTempFile(from, to, overwrite);
        if (entry) {
            reached(point + ".after");
        }
    }

    private static void reached(String point) {
        File folder = new File(System.getenv("CHAOS_HOOKS"));
        long pid = ProcessHandle.current().pid();
        File armed = new File(folder, point);
        try {
            String of = new String(Files.readAllBytes(armed.toPath())).trim();
            if (!of.equals(System.getenv("CHAOS_DRIVER"))
                    || !armed.renameTo(new File(folder, "hit/" + point + "." + pid))) {
                return;
            }
        } catch (IOException unarmed) {
            return;
        }
        try {
            new ProcessBuilder(new String[] {"kill", "-9", String.valueOf(pid)}).start();
            Thread.sleep(60000L);
        } catch (Exception broken) {
            throw new RuntimeException(broken);
        }
    }
}

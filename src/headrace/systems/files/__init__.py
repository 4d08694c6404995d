"""Files as a row system: bounded Parquet, JSON lines and CSV in, whole files out."""

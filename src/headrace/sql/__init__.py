"""SQL: statements become an app's steps. Imported when ``app.sql`` or a ``.sql`` file is used."""

from django.db import migrations

from loops import triggers


class Migration(migrations.Migration):
    """A trigger refuses to change the status of a run or a graph that has ended."""

    dependencies = [("loops", "0005_project_day")]
    operations = [migrations.RunPython(triggers.install, triggers.remove)]

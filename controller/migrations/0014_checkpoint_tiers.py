from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controller', '0013_checkpoint_verified'),
    ]

    operations = [
        migrations.AddField(
            model_name='checkpoint',
            name='tier',
            field=models.CharField(default='shared', max_length=16),
        ),
        migrations.AddField(
            model_name='checkpoint',
            name='copies',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.RemoveConstraint(
            model_name='checkpoint',
            name='one_row_per_folder',
        ),
        migrations.AddConstraint(
            model_name='checkpoint',
            constraint=models.UniqueConstraint(
                fields=('training_job', 'folder', 'tier'), name='one_row_per_folder_and_tier'
            ),
        ),
    ]

"""`_keras/profiles.py`: files of TensorFlow's profiler."""

import tensorflow as tf

from tf_comptrain import _keras


def test_planes_name_what_ran(tmp_path):
    square = tf.function(lambda x: tf.linalg.matmul(x, x))
    x = tf.random.stateless_normal((200, 200), seed=(1, 2))
    square(x)
    tf.profiler.experimental.start(str(tmp_path))
    square(x).numpy()
    tf.profiler.experimental.stop()
    (path,) = tmp_path.rglob("*.xplane.pb")
    planes = {plane.name: plane for plane in _keras.planes_of_profile(str(path))}
    host = planes["/host:CPU"]
    names = {key: value.name for key, value in host.event_metadata.items()}
    events = [(names[event.metadata_id], event.duration_ps) for line in host.lines for event in line.events]
    assert any(name.startswith("MatMul") and duration > 0 for name, duration in events)

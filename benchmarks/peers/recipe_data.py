"""Batches for recipe_peer.py: one that stays, or drawn from a made data set as `demi bench recipe` draws them.

The examples are random, in the number, dtype and place of those of demi's recipe, since what a step takes does not depend on their
values: pictures are kept as uint8 on the device, each batch is chosen, cropped and mirrored as a whole, and converted by one pass and
shifted by another; rows are taken in order, as views; texts have one length.
"""
import torch

PICTURES = {  # number, channels, size, classes, mean, standard deviation, padding of the random crop (0: neither cropped nor mirrored)
    "fashion-cnn": (60_000, 1, 28, 10, [0.286], [0.353], 0),
    "cifar10-resnet50": (50_000, 3, 32, 10, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616], 4),
    "synthetic-resnet50": (None, 3, 224, 1000, [0.0] * 3, [1.0] * 3, 0),
}
ROW_BATCHES, PICTURE_BATCHES, TEXTS = 50, 10, 640  # of mlp and synthetic-resnet50; of imdb-lstm in benchmarks/measure.py
WORDS = 100_683


def resident(x, y):
    while True:
        yield x, y


def examples(a):
    """How many the data set of a recipe has."""
    made = PICTURES[a.recipe][0] or PICTURE_BATCHES * a.batch_size if a.recipe in PICTURES else TEXTS
    return ROW_BATCHES * a.batch_size if a.recipe == "mlp" else made


def chosen(a):
    """Places of each batch's examples: all in another order in each epoch, a short last batch left out."""
    while True:
        for places in torch.randperm(examples(a)).split(a.batch_size):
            if len(places) == a.batch_size:
                yield places


def rows(a):
    x, y = (torch.randn(examples(a), a.width, device=a.device) for _ in range(2))
    while True:
        yield from zip(x.split(a.batch_size), y.split(a.batch_size))


def cropped(images, padding):
    """A random window of the padded picture, mirrored or not, for each."""
    count, channels, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, count, 1))
    column = torch.arange(width)
    column = left + torch.where(torch.rand(count, 1) < 0.5, width - 1 - column, column)
    row = (top + torch.arange(height)) * (width + 2 * padding)
    pixel = row.to(images.device).unsqueeze(2) + column.to(images.device).unsqueeze(1)
    padded = torch.nn.functional.pad(images, [padding] * 4).flatten(2)
    return padded.gather(2, pixel.view(count, 1, -1).expand(-1, channels, -1)).view_as(images)


def pictures(a):
    _, channels, size, classes, mean, deviation, padding = PICTURES[a.recipe]
    images = torch.randint(0, 256, (examples(a), channels, size, size), dtype=torch.uint8, device=a.device)
    labels = torch.randint(0, classes, (examples(a),), device=a.device)
    channel = lambda values: torch.tensor(values, device=a.device).view(1, -1, 1, 1)
    scale, shift = 1 / (255 * channel(deviation)), -channel(mean) / channel(deviation)
    for places in chosen(a):
        places = places.to(a.device, non_blocking=True)
        batch = images.index_select(0, places)
        if padding:
            batch = cropped(batch, padding)
        x = torch.empty_like(batch, dtype=torch.float32, memory_format=torch.channels_last)
        yield torch.mul(batch, scale, out=x).add_(shift), labels.index_select(0, places)


def texts(a):
    tokens = torch.randint(0, WORDS, (TEXTS, a.length), dtype=torch.int32)
    labels = torch.randint(0, 2, (TEXTS,))
    place = (lambda batch: batch.pin_memory().to(a.device, non_blocking=True)) if a.device == "cuda" else lambda batch: batch
    for places in chosen(a):
        yield place(tokens.index_select(0, places).long()), place(labels.index_select(0, places).float().unsqueeze(1))


def loader(a):
    if a.recipe == "mlp":
        return rows(a)
    return pictures(a) if a.recipe in PICTURES else texts(a)

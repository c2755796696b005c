"""A shop's purchases: will this user buy again in the coming week?

`penstock replay purchases` makes a shop of any size, and `penstock replay retail --file PATH` sends a real one's transactions.

This is the example that the project began with: raw purchase events, the items' metadata broadcast to them, and features of each
user by day. Its `user_30d_purchases` is the column `user_purchases_30d`: the purchases of the last 30 days, returns left out.
An example is a user, in the country that is bought from, on a day: `key` is the JSON array of both.

A third set of features is a few lines more, appended to `features`:

    FeatureSet(
        name="visit",
        source=PURCHASES,
        entity=("user_id", "country"),
        windows=(days(90),),
        aggregates=(Aggregate("dearest", "max", "price"), Aggregate("items", "last_k", "item_id", k=5, type="string")),
    )
"""

from datetime import date

from pipelines.declare import (
    Aggregate,
    Column,
    DailySpine,
    Dimension,
    Expectation,
    Expression,
    FeatureSet,
    Field,
    Label,
    Pipeline,
    Promotion,
    Source,
    Training,
    days,
    hours,
)

PURCHASES = Source(
    name="shop_purchases",
    topic="shop.purchases",
    event_time="purchased_at",
    event_id="purchase_id",
    subject="user_id",
    fields=(
        Field("purchase_id", required=True),
        # A guest has none, and so counts nowhere by user.
        Field("user_id"),
        Field("item_id", required=True),
        # Negative for what was sent back.
        Field("quantity", "int64", required=True),
        # Of one piece. Real shops sell some things for a tenth of a penny.
        Field("price", "decimal(12,3)", required=True),
        Field("country", required=True),
        Field("purchased_at", "timestamp", required=True),
    ),
)

ITEMS = Source(
    name="shop_items",
    topic="shop.items",
    event_time="changed_at",
    event_id="change_id",
    fields=(
        Field("change_id", required=True),
        Field("item_id", required=True),
        Field("name"),
        Field("category"),
        Field("list_price", "float64"),
        Field("changed_at", "timestamp", required=True),
    ),
    # A day has a dozen changes, so that a single broken record is a large share.
    dead_letter_limit=0.25,
)

ITEM = Dimension(name="item", source=ITEMS, entity=("item_id",), fields=("category", "list_price"), within=days(365))
"""What was known of an item when it was bought: few versions, so every task gets all of them."""

BOUGHT = "quantity > 0"
WINDOWS = (days(7), days(30))

USER = FeatureSet(
    name="user",
    source=PURCHASES,
    entity=("user_id",),
    windows=WINDOWS,
    lookups=(ITEM,),
    per_event=(Expression("amount", "quantity * price"), Expression("day", "unix_date(to_date(purchased_at))")),
    aggregates=(
        Aggregate("purchases", "count", where=BOUGHT),
        Aggregate("returns", "count", where="quantity < 0"),
        # Net of what was sent back.
        Aggregate("spent", "sum", "amount"),
        Aggregate("quantity", "mean", "quantity", where=BOUGHT),
        Aggregate("items", "distinct", "item_id", where=BOUGHT),
        Aggregate("categories", "distinct", "item_category", where=BOUGHT),
        Aggregate("active_days", "distinct", "day", where=BOUGHT),
        Aggregate("offer_rate", "rate", "price < item_list_price", where=BOUGHT),
        Aggregate("last_category", "last", "item_category", where=BOUGHT, type="string"),
        Aggregate("last_day", "max", "day", where=BOUGHT),
    ),
    derived=(
        Expression("days_since", "datediff(event_date, date_from_unix_date(cast(user_last_day_30d as int)))"),
        Expression("recent_share", "try_divide(user_purchases_7d, user_purchases_30d)"),
    ),
    expectations=(
        Expectation(column="user_id", unique=True),
        Expectation(column="user_days_since", between=(0, 29)),
        Expectation(volume=(0.5, 2.0), breach="warn"),
    ),
)

COUNTRY = FeatureSet(
    name="country",
    source=PURCHASES,
    entity=("country",),
    windows=WINDOWS,
    where=BOUGHT,
    aggregates=(
        Aggregate("purchases", "count"),
        Aggregate("spent", "sum", "quantity * price"),
        Aggregate("buyers", "approx_distinct", "user_id"),
    ),
)

PIPELINE = Pipeline(
    name="purchases",
    description="Will a shop's user buy again within seven days?",
    first_day=date(2024, 4, 1),
    last_day=date(2024, 4, 2),
    lateness=hours(3),
    spine=DailySpine(
        source=PURCHASES, entity=("user_id", "country"), within=days(30), where=BOUGHT, columns=(Column("country"),)
    ),
    features=(USER, COUNTRY),
    label=Label(
        source=PURCHASES,
        entity=("user_id",),
        aggregates=(Aggregate("purchases", "count", where=BOUGHT),),
        of="purchases > 0",
        horizon=days(7),
        lateness=days(1),
        # Most users of a day may be quiet ones; four of them for each who buys say as much.
        negatives_per_positive=4.0,
    ),
    training=Training(every=days(28), days=days(60), validation=days(7), holdout=days(14)),
    promotion=Promotion(metric="log_loss"),
    expectations=(
        Expectation(unique=True),
        Expectation(column="country", nulls=0.0),
        Expectation(column="user_purchases_30d", between=(0, 1_000_000)),
        Expectation(column="user_last_category_30d", nulls=0.5, breach="warn"),
        Expectation(volume=(0.5, 2.0), breach="warn"),
    ),
    tags=("shop",),
)

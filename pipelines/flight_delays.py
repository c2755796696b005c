"""Real flights out of New York: will this one arrive more than 15 minutes late?

The data set (`penstock replay flights`) is every flight of 2013 from EWR, JFK and LGA. The model is asked two hours before
a flight leaves, for all flights of the coming day at once, from what had reached Kafka when the last UTC day ended.
"""

from datetime import date

from pipelines.declare import (
    Aggregate,
    Column,
    Dimension,
    FeatureSet,
    Field,
    Label,
    Pipeline,
    Promotion,
    Source,
    Spine,
    Training,
    days,
    hours,
)

SCHEDULED = Source(
    name="flights_scheduled",
    topic="flights.scheduled",
    event_time="scheduled_departure",
    event_id="flight_id",
    fields=(
        Field("flight_id", required=True),
        Field("carrier", required=True),
        Field("flight_number", "int64", required=True),
        Field("aircraft"),
        Field("aircraft_year", "int64"),
        Field("seats", "int64"),
        Field("origin", required=True),
        Field("destination", required=True),
        Field("distance_miles", "int64"),
        Field("scheduled_departure", "timestamp", required=True),
        Field("scheduled_arrival", "timestamp", required=True),
        Field("local_departure_minute", "int64", required=True),
    ),
)

LANDED = Source(
    name="flights_landed",
    topic="flights.landed",
    event_time="landed_at",
    event_id="flight_id",
    fields=(
        Field("flight_id", required=True),
        Field("carrier", required=True),
        Field("aircraft"),
        Field("origin", required=True),
        Field("destination", required=True),
        Field("status", required=True),
        Field("departure_delay_minutes", "int64"),
        Field("arrival_delay_minutes", "int64"),
        Field("air_time_minutes", "int64"),
        Field("landed_at", "timestamp", required=True),
    ),
)

WEATHER = Source(
    name="weather_observed",
    topic="weather.observed",
    event_time="observed_at",
    event_id="observation_id",
    fields=(
        Field("observation_id", required=True),
        Field("origin", required=True),
        Field("observed_at", "timestamp", required=True),
        Field("temperature_f", "float64"),
        Field("humidity_percent", "float64"),
        Field("wind_speed_mph", "float64"),
        Field("precipitation_inches", "float64"),
        Field("pressure_millibars", "float64"),
        Field("visibility_miles", "float64"),
    ),
)

LATE = "arrival_delay_minutes > 15"

DELAYS = (
    Aggregate("flights", "count"),
    Aggregate("late_rate", "rate", LATE),
    Aggregate("mean_delay", "mean", "arrival_delay_minutes"),
    Aggregate("cancelled_rate", "rate", "status = 'cancelled'"),
)

WINDOWS = (days(1), days(7), days(30))


def delays_by(entity: str) -> FeatureSet:
    """How late the flights of an entity came in lately."""
    return FeatureSet(name=entity, source=LANDED, entity=(entity,), windows=WINDOWS, aggregates=DELAYS)


PIPELINE = Pipeline(
    name="flight_delays",
    description="Will a flight out of New York arrive more than 15 minutes late?",
    first_day=date(2013, 4, 1),
    last_day=date(2013, 4, 2),
    # The day's end plus three hours is 22:00 or 23:00 in New York: the coming day's flights are those of its calendar day.
    lateness=hours(3),
    spine=Spine(
        source=SCHEDULED,
        key="flight_id",
        at="scheduled_departure",
        before=hours(2),
        columns=(
            Column("carrier"),
            Column("origin"),
            Column("destination"),
            Column("aircraft"),
            Column("departure_hour", sql="cast(local_departure_minute div 60 as string)", type="string"),
            Column(
                "weekday",
                sql="cast(weekday(from_utc_timestamp(scheduled_departure, 'America/New_York')) as string)",
                type="string",
            ),
            Column("departure_minute", sql="local_departure_minute", type="float64"),
            Column("duration_minutes", sql="timestampdiff(MINUTE, scheduled_departure, scheduled_arrival)", type="float64"),
            Column("distance_miles"),
            Column("seats"),
            Column("aircraft_year"),
        ),
    ),
    features=(delays_by("origin"), delays_by("carrier"), delays_by("destination"), delays_by("aircraft")),
    dimensions=(
        Dimension(
            name="weather",
            source=WEATHER,
            entity=("origin",),
            within=days(1),
            fields=(
                "temperature_f",
                "humidity_percent",
                "wind_speed_mph",
                "precipitation_inches",
                "pressure_millibars",
                "visibility_miles",
            ),
        ),
    ),
    # A cancelled or diverted flight has no arrival delay, so the condition is null: it gets a score, but no label.
    label=Label(source=LANDED, key="flight_id", of=LATE, horizon=days(2)),
    training=Training(every=days(28), days=days(60), validation=days(7), holdout=days(14)),
    promotion=Promotion(metric="log_loss"),
    tags=("flights",),
)

//! The business tables, for each store. The phases say `Db: RidesDb` and do not know which.

use std::future::Future;

use atomic_phases::diesel_async::{RunQueryDsl, SimpleAsyncConnection};
#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::{Batch, RequestContext, Store, Tx};
use diesel::prelude::*;

use crate::create_ride::CreateRide;

type Failure = Box<dyn std::error::Error + Send + Sync>;

diesel::table! { users (id) { id -> BigInt, email -> Text, stripe_customer_id -> Text, } }

diesel::table! {
    rides (id) {
        id -> Text, user_id -> BigInt,
        origin_lat -> Double, origin_lon -> Double, target_lat -> Double, target_lon -> Double,
        charge_id -> Nullable<Text>, canceled -> Bool, request_key -> Text, request_id -> Text,
    }
}

diesel::table! {
    audit_records (id) { id -> Text, user_id -> BigInt, action -> Text, ride_id -> Text, }
}

/// What the example asks of its database.
pub trait RidesDb: Store {
    /// Creates the tables and the two users, where they are missing.
    fn prepare(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The user who says to be `email`, for authentication; outside of any phase.
    fn user_id(&self, email: &str) -> impl Future<Output = Result<Option<i64>, Failure>> + Send;

    /// Whose card the user pays with; outside of any phase.
    fn set_customer(
        &self,
        email: &str,
        customer: &str,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Which request a ride belongs to: the user's id, the key, and the request's id. Outside of any phase.
    fn request_of(
        &self,
        ride_id: &str,
    ) -> impl Future<Output = Result<Option<(i64, String, String)>, Failure>> + Send;

    fn customer(
        tx: &mut Tx<'_, Self>,
        user_id: i64,
    ) -> impl Future<Output = QueryResult<String>> + Send;

    fn insert_ride(
        tx: &mut Tx<'_, Self>,
        id: &str,
        ride: &CreateRide,
        ctx: &RequestContext,
    ) -> impl Future<Output = QueryResult<usize>> + Send;

    fn insert_audit_record(
        tx: &mut Tx<'_, Self>,
        id: &str,
        user_id: i64,
        ride_id: &str,
    ) -> impl Future<Output = QueryResult<usize>> + Send;

    fn add_charge(batch: &mut Batch<'_, Self>, ride_id: &str, charge_id: &str);

    fn cancel_ride(batch: &mut Batch<'_, Self>, ride_id: &str);

    fn add_audit_record(
        batch: &mut Batch<'_, Self>,
        id: &str,
        user_id: i64,
        action: &str,
        ride_id: &str,
    );
}

/// The same diesel DSL, once for each backend.
macro_rules! rides_db {
    ($store:ty, $schema:literal) => {
        impl RidesDb for $store {
            async fn prepare(&self) -> Result<(), Failure> {
                self.migrate().await?;
                Ok(self.connection().await?.batch_execute(include_str!($schema)).await?)
            }

            async fn user_id(&self, email: &str) -> Result<Option<i64>, Failure> {
                let mut conn = self.connection().await?;
                let user = users::table.filter(users::email.eq(email)).select(users::id);
                Ok(user.first(&mut *conn).await.optional()?)
            }

            async fn set_customer(&self, email: &str, customer: &str) -> Result<(), Failure> {
                let mut conn = self.connection().await?;
                diesel::update(users::table.filter(users::email.eq(email)))
                    .set(users::stripe_customer_id.eq(customer))
                    .execute(&mut *conn)
                    .await?;
                Ok(())
            }

            async fn request_of(
                &self,
                ride_id: &str,
            ) -> Result<Option<(i64, String, String)>, Failure> {
                let mut conn = self.connection().await?;
                let request = (rides::user_id, rides::request_key, rides::request_id);
                let ride = rides::table.find(ride_id).select(request);
                Ok(ride.first(&mut *conn).await.optional()?)
            }

            async fn customer(tx: &mut Tx<'_, Self>, user_id: i64) -> QueryResult<String> {
                users::table.find(user_id).select(users::stripe_customer_id).first(tx).await
            }

            async fn insert_ride(
                tx: &mut Tx<'_, Self>,
                id: &str,
                ride: &CreateRide,
                ctx: &RequestContext,
            ) -> QueryResult<usize> {
                diesel::insert_into(rides::table)
                    .values((
                        rides::id.eq(id),
                        rides::user_id.eq(ride.user_id),
                        rides::origin_lat.eq(ride.origin_lat),
                        rides::origin_lon.eq(ride.origin_lon),
                        rides::target_lat.eq(ride.target_lat),
                        rides::target_lon.eq(ride.target_lon),
                        rides::request_key.eq(ctx.key().as_str()),
                        rides::request_id.eq(ctx.request_id().to_string()),
                    ))
                    .execute(tx)
                    .await
            }

            async fn insert_audit_record(
                tx: &mut Tx<'_, Self>,
                id: &str,
                user_id: i64,
                ride_id: &str,
            ) -> QueryResult<usize> {
                diesel::insert_into(audit_records::table)
                    .values((
                        audit_records::id.eq(id),
                        audit_records::user_id.eq(user_id),
                        audit_records::action.eq("created"),
                        audit_records::ride_id.eq(ride_id),
                    ))
                    .execute(tx)
                    .await
            }

            fn add_charge(batch: &mut Batch<'_, Self>, ride_id: &str, charge_id: &str) {
                let ride = rides::table.find(ride_id.to_owned());
                batch.add(diesel::update(ride).set(rides::charge_id.eq(charge_id.to_owned())));
            }

            fn cancel_ride(batch: &mut Batch<'_, Self>, ride_id: &str) {
                let ride = rides::table.find(ride_id.to_owned());
                batch.add(diesel::update(ride).set(rides::canceled.eq(true)));
            }

            fn add_audit_record(
                batch: &mut Batch<'_, Self>,
                id: &str,
                user_id: i64,
                action: &str,
                ride_id: &str,
            ) {
                batch.add(diesel::insert_into(audit_records::table).values((
                    audit_records::id.eq(id.to_owned()),
                    audit_records::user_id.eq(user_id),
                    audit_records::action.eq(action.to_owned()),
                    audit_records::ride_id.eq(ride_id.to_owned()),
                )));
            }
        }
    };
}

rides_db!(Sqlite, "migrations/sqlite.sql");
rides_db!(Postgres, "migrations/postgres.sql");
#[cfg(feature = "mysql")]
rides_db!(Mysql, "migrations/mysql.sql");
